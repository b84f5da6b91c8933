"""Rewards: lists in, one number a rollout out. Every column of the data comes by its name.

With tools a completion is a list of messages, one a turn: what the policy wrote, without what the tools
answered. The last one is its answer.
"""

import re

Messages = list[dict[str, str]]


def exact(completions: list[Messages], answer: list[str], **kwargs: object) -> list[float]:
    """1 where the last number of the answer is the right one, else 0."""
    return [
        float(_last_number(completion[-1]["content"]) == float(expected))
        for completion, expected in zip(completions, answer, strict=True)
    ]


def brief(completions: list[Messages], **kwargs: object) -> list[float]:
    """From 1 for nothing written down to 0 for 400 characters and more, all turns together."""
    lengths = [sum(len(turn["content"]) for turn in completion) for completion in completions]
    return [max(0.0, 1 - length / 400) for length in lengths]


def _last_number(text: str) -> float | None:
    numbers = re.findall(r"\d+(?:\.\d+)?", text)
    return float(numbers[-1]) if numbers else None
