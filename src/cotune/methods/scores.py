"""Scores of texts: a success, scores that are equal for all that is known, a cover of the questions."""

import math
from collections.abc import Sequence
from statistics import fmean, variance

SOLVED_AT = 0.5
"""A rollout whose reward reaches this is a success; the papers' rewards are 0 and 1."""


def too_close_to_call(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return whether two samples' means differ by no more than the standard error of their difference.

    That is sqrt(var(a)/len(a) + var(b)/len(b)) with sample variances. A sample of fewer than two
    values has no variance and counts as too close.
    """
    if min(len(a), len(b)) < 2:
        return True
    error = math.sqrt(variance(a) / len(a) + variance(b) / len(b))
    return abs(fmean(a) - fmean(b)) <= error


def greedy_cover(
    scores: Sequence[Sequence[float]], floor: float, ties: Sequence[float] = ()
) -> list[int]:
    """Return the texts that together score best on every question, by index, in order of choice.

    Greedy: each step takes the text that most raises the sum over questions of the best score, and it ends
    when none adds anything.

    Args:
        scores: texts × questions.
        floor: the score on a question without any text.
        ties: what decides between texts that add the same, the higher first; then the earlier one.
    """
    chosen: list[int] = []
    best = [floor] * len(scores[0])

    def covered(text: int) -> float:
        return sum(max(new, old) for new, old in zip(scores[text], best, strict=True))

    while True:
        first = max(
            range(len(scores)), key=lambda text: (covered(text), ties[text] if ties else 0, -text)
        )
        if covered(first) <= sum(best):
            return chosen
        chosen.append(first)
        best = [max(new, old) for new, old in zip(scores[first], best, strict=True)]
