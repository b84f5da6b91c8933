"""The type that a policy computes in: `training.precision`.

On a GPU the policy usually computes under autocast to bfloat16. On a CPU it usually computes in the type of its
weights, so the option decides the type in which they are loaded. Bfloat16 pays on CPUs that multiply it natively;
others emulate it, many times slower than float32.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any, Literal

from cotune.policy.policy_files import PolicyConfig

Precision = Literal["auto", "fp32", "bf16"]
_FRACTION_BITS = {"bfloat16": 7, "float16": 10}
_TYPICAL_WEIGHT = 0.02  # the standard deviation that weights are usually initialized with
_NATIVE = ("avx512_bf16", "amx_bf16", "bf16")  # names of x86 and of ARM


@cache
def native_bfloat16() -> bool:
    """Return whether this machine's CPU multiplies bfloat16 natively, as far as torch says."""
    import torch

    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) for name in _NATIVE)


def weights_dtype(policy: PolicyConfig, precision: Precision) -> str:
    """Return the type to load a policy's weights in: as `policy.dtype`, with "auto" resolved.

    "auto" is float32 for `fp32`. Otherwise it stays the checkpoint's on a GPU; without one it is float32 for `auto` if
    the CPU has no native bfloat16, and bfloat16 for `bf16` if the weights are frozen under adapters.
    """
    if policy.dtype != "auto":
        return policy.dtype
    if precision == "fp32":
        return "float32"
    import torch

    if torch.cuda.is_available():
        return "auto"
    if precision == "bf16":
        return "auto" if policy.lora is None else "bfloat16"
    return "auto" if native_bfloat16() else "float32"


def autocast(policy: PolicyConfig, precision: Precision) -> bool | None:
    """Return whether the trainer computes under autocast to bfloat16; None for its own default.

    Without a GPU only for `bf16` with trained weights: frozen ones are loaded in bfloat16.
    """
    import torch

    if torch.cuda.is_available():
        return None if precision == "auto" else precision == "bf16"
    return precision == "bf16" and policy.lora is None


def casting(
    policy: PolicyConfig, precision: Precision, engine_args: Mapping[str, Any] | None = None
) -> Callable[[], AbstractContextManager[Any]]:
    """Return what opens the trainer's autocast around a policy that no trainer holds.

    Args:
        engine_args: `training.engine_args`, whose `bf16` and `fp16` win.
    """
    import torch

    args = engine_args or {}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.get("fp16"):
        return partial(torch.autocast, device, torch.float16, enabled=True)
    bf16 = args.get("bf16")
    enabled = autocast(policy, precision) if bf16 is None else bf16
    # The trainer's own default is bfloat16.
    return partial(torch.autocast, device, torch.bfloat16, enabled=enabled is not False)


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
