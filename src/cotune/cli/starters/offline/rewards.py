"""Reward functions: lists in, one number per completion out. Data columns arrive by name."""

import re


def boxed(completions: list[str], answer: list[str], **kwargs: object) -> list[float]:
    """Return 1 if the last \\boxed{…} of the completion holds the answer, else 0."""
    all_boxes = [re.findall(r"\\boxed\{([^{}]*)\}", completion) for completion in completions]
    return [
        float(bool(boxes) and boxes[-1].strip() == str(expected))
        for boxes, expected in zip(all_boxes, answer, strict=True)
    ]
