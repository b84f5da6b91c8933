"""Reward functions: lists in, one number per completion out. Data columns arrive by name."""


def exact(completions: list[str], answer: list[str], **kwargs: object) -> list[float]:
    """Return 1 if the completion equals the answer, else 0."""
    return [
        float(completion.strip().rstrip(".") == str(expected))
        for completion, expected in zip(completions, answer, strict=True)
    ]
