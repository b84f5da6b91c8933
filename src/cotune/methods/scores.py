"""What counts as a success, and when two scores are equal for all that is known."""

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
