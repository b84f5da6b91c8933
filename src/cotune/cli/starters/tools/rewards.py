"""Reward functions: lists in, one number per rollout out. Data columns arrive by name.

With tools, a completion is a list of messages as in TRL: the policy's, with their `tool_calls`, and the
tools'. The last message is its answer.
"""

import re

Messages = list[dict[str, str]]


def exact(completions: list[Messages], answer: list[str], **kwargs: object) -> list[float]:
    """Return 1 if the last number of the answer is correct, else 0."""
    return [
        float(_last_number(completion[-1]["content"]) == float(expected))
        for completion, expected in zip(completions, answer, strict=True)
    ]


def brief(completions: list[Messages], **kwargs: object) -> list[float]:
    """Return a score from 1 for no text to 0 for 400 characters or more, over all turns."""
    lengths = [sum(len(turn["content"]) for turn in completion) for completion in completions]
    return [max(0.0, 1 - length / 400) for length in lengths]


def _last_number(text: str) -> float | None:
    numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))  # 1,620 is one number
    return float(numbers[-1]) if numbers else None
