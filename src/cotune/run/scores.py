"""The score of a set of rollouts: the mean reward with its interval, overall and by stratum."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev

from cotune.protocols import Environment, Rewards
from cotune.types import Trajectory

EXACT_MATCH = "exact match"
MEAN_REWARD = "mean reward"
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
    rewards = [trajectory.reward for trajectory in trajectories]
    return score_values(rewards, [t.task.stratum for t in trajectories], measure)


def score_values(values: Sequence[float], strata: Sequence[str], measure: str) -> Score:
    """Compute the score of a value a question, at least one; a stratum of "" is none."""
    if not values:
        raise ValueError("no rollouts to score; expected at least one")
    groups: dict[str, list[float]] = defaultdict(list)
    for value, stratum in zip(values, strata, strict=True):
        groups[stratum].append(value)
    deviation = stdev(values) if len(values) > 1 else 0.0
    return Score(
        sum(values) / len(values),
        len(values),
        {name: (sum(v) / len(v), len(v)) for name, v in sorted(groups.items()) if name},
        measure,
        None if set(values) <= {0.0, 1.0} else deviation,
        all(0 <= value <= 1 for value in values),
    )


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
    from scipy.special import stdtrit

    spread = float(stdtrit(n - 1, 0.975)) * deviation / math.sqrt(n)
    if not bounded:
        return mean - spread, mean + spread
    return max(0.0, mean - spread), min(1.0, mean + spread)


def wilson(share: float, n: int) -> tuple[float, float]:
    """Return Wilson's score interval of a share over `n` trials (Wilson 1927)."""
    if n < 1:
        raise ValueError(f"n is {n}; expected at least 1")
    z = _Z
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
