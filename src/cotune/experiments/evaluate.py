"""Scores of a set of rollouts: the mean, its interval, and the same by stratum."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cotune.records import Trajectory


@dataclass(frozen=True)
class Score:
    """Mean reward of one rollout a task; exact match where the reward is exact match.

    Attributes:
        em: the mean.
        n: rollouts.
        by_stratum: (mean, rollouts) of each stratum, in name order.
    """

    em: float
    n: int
    by_stratum: Mapping[str, tuple[float, int]]

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the mean, for rewards of 0 and 1."""
        return wilson(self.em, self.n)


def score_trajectories(trajectories: Sequence[Trajectory]) -> Score:
    """The score of finished, scored rollouts.

    Raises:
        ValueError: there are none.
    """
    if not trajectories:
        raise ValueError("no rollouts to score; expected at least one")
    groups: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        groups[trajectory.task.stratum].append(trajectory.reward)
    rewards = [t.reward for t in trajectories]
    return Score(
        sum(rewards) / len(rewards),
        len(rewards),
        {name: (sum(v) / len(v), len(v)) for name, v in sorted(groups.items()) if name},
    )


def mean_over(
    by_stratum: Mapping[str, Sequence[float]], strata: Collection[str]
) -> tuple[float, int] | None:
    """(mean, rollouts) of some strata taken together; None where none of them is there.

    Args:
        by_stratum: (mean, rollouts) of each stratum.
        strata: their names.
    """
    found = [by_stratum[name] for name in strata if name in by_stratum]
    n = int(sum(count for _, count in found))
    return (sum(mean * count for mean, count in found) / n, n) if n else None


def wilson(share: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a share over `n` trials (Wilson 1927)."""
    if n < 1:
        raise ValueError(f"n is {n}; expected at least 1")
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
