"""A check for learning rates that are too small for the type of the weights."""

_FRACTION_BITS = {"bfloat16": 7, "float16": 10}
_TYPICAL_WEIGHT = 0.02  # the standard deviation that weights are usually initialized with


def rounding_notice(dtype: str, learning_rate: float) -> str | None:
    """Return a notice if AdamW's steps, about as large as the learning rate, are lost to rounding.

    Args:
        dtype: type of the trained weights.
    """
    bits = _FRACTION_BITS.get(dtype)
    if bits is None:
        return None
    # A step below half of the distance to the next number is lost; that is at least this share.
    kept_below = learning_rate * 2 ** (bits + 2)
    if kept_below >= _TYPICAL_WEIGHT:
        return None
    return (
        f"weights are trained in {dtype}, where steps of training.learning_rate {learning_rate:g} are "
        f"lost to rounding for weights above {kept_below:.2g}, which is most of them; set "
        "policy.dtype: float32 (bf16 still computes), or policy.lora"
    )
