"""Rewards: lists in, one number a completion out. Every column of the data comes by its name.

A completion holds what the policy wrote in all turns, without what the tools answered.
"""

import re


def exact(completions: list[str], answer: list[str], **kwargs: object) -> list[float]:
    """1 where the last number that was written is the answer, else 0."""
    return [
        float(_last_number(completion) == float(expected))
        for completion, expected in zip(completions, answer, strict=True)
    ]


def brief(completions: list[str], **kwargs: object) -> list[float]:
    """From 1 for nothing written down to 0 for 400 characters and more."""
    return [max(0.0, 1 - len(completion) / 400) for completion in completions]


def _last_number(text: str) -> float | None:
    numbers = re.findall(r"\d+(?:\.\d+)?", text)
    return float(numbers[-1]) if numbers else None
