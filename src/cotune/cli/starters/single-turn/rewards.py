"""Rewards: lists in, one number a completion out. Every column of the data comes by its name."""


def exact(completions: list[str], answer: list[str], **kwargs: object) -> list[float]:
    """1 where the completion is the answer, else 0."""
    return [
        float(completion.strip().rstrip(".") == expected)
        for completion, expected in zip(completions, answer, strict=True)
    ]
