"""The score of a set of rollouts: the mean reward with its interval, overall and by stratum."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cotune.protocols import Environment, Rewards
from cotune.types import Trajectory

EXACT_MATCH, MEAN_REWARD = "exact match", "mean reward"
_FEWEST = 5
_Z = 1.959964  # normal quantile of a 95 % interval


@dataclass(frozen=True)
class Score:
    """The mean reward of one rollout per task; exact match if that is the reward.

    Attributes:
        em: the mean.
        n: rollouts.
        by_stratum: (mean, rollouts) of each stratum, in name order.
        measure: the name of the reward, for titles.
        deviation: the rewards' sample standard deviation; None if all are 0 or 1.
        bounded: whether all rewards are in [0, 1], and the interval is cut to that.
    """

    em: float
    n: int
    by_stratum: Mapping[str, tuple[float, int]]
    measure: str = EXACT_MATCH
    deviation: float | None = None
    bounded: bool = False

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the mean: Wilson's for rewards of 0 and 1, else Student's t.

        None for a single reward that is neither 0 nor 1, and for few that are not all in [0, 1].
        """
        if self.deviation is None:
            return wilson(self.em, self.n)
        return t_interval(self.em, self.deviation, self.n, bounded=self.bounded)


def measure_of(environment: Environment, rewards: Rewards | None = None) -> str:
    """Return the name of the mean reward of an environment, or of reward functions in its place."""
    return getattr(environment if rewards is None else rewards, "measure", MEAN_REWARD)


def score_trajectories(trajectories: Sequence[Trajectory], measure: str = EXACT_MATCH) -> Score:
    """Compute the score of finished, scored rollouts, one per task; at least one."""
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
        measure,
        None if set(rewards) <= {0.0, 1.0} else deviation_of(rewards),
        all(0 <= reward <= 1 for reward in rewards),
    )


def deviation_of(values: Sequence[float]) -> float:
    """Return the sample standard deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def mean_over(
    by_stratum: Mapping[str, Sequence[float]], strata: Collection[str]
) -> tuple[float, int] | None:
    """Return (mean, rollouts) of some strata taken together; None if none of them occurs."""
    found = [by_stratum[name] for name in strata if name in by_stratum]
    n = int(sum(count for _, count in found))
    return (sum(mean * count for mean, count in found) / n, n) if n else None


def t_interval(
    mean: float, deviation: float, n: int, *, bounded: bool
) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean by Student's t; None if `n` values are too few for one.

    Args:
        deviation: the values' sample standard deviation.
        bounded: whether the values are in [0, 1], and the interval is cut to that. Otherwise fewer than
            five values have no interval: it would be too wide to be useful.
    """
    if n < (2 if bounded else _FEWEST):
        return None
    spread = student_t(n - 1) * deviation / math.sqrt(n)
    low, high = mean - spread, mean + spread
    return (max(0.0, low), min(1.0, high)) if bounded else (low, high)


def student_t(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t, within 0.2 %.

    Exact for one and two degrees of freedom, else the Cornish-Fisher expansion (Abramowitz and
    Stegun 26.7.5).
    """
    if degrees < 1:
        raise ValueError(f"degrees is {degrees}; expected at least 1")
    if degrees == 1:
        return math.tan(0.475 * math.pi)
    if degrees == 2:
        return 0.95 * math.sqrt(2 / (4 * 0.975 * 0.025))
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees**i for i, term in enumerate(terms, 1))


def wilson(share: float, n: int, z: float = _Z) -> tuple[float, float]:
    """Return Wilson's score interval of a share over `n` trials (Wilson 1927)."""
    if n < 1:
        raise ValueError(f"n is {n}; expected at least 1")
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
