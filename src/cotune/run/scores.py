"""The score of a set of rollouts: the mean reward with its interval, overall and by stratum."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Any

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

        Equal rewards in [0, 1] have Wilson's too, so that no interval is zero wide. None for a single reward that
        is neither 0 nor 1, for few that are not all in [0, 1], and for equal ones outside.
        """
        if self.deviation is None:
            return wilson(self.em, self.n)
        if self.deviation == 0:
            return wilson(self.em, self.n) if self.bounded and self.n > 1 else None
        return t_interval(self.em, self.deviation, self.n, bounded=self.bounded)


def measure_of(environment: Environment, rewards: Rewards | None = None) -> str:
    """Return the name of the mean reward of an environment, or of reward functions in its place."""
    return getattr(environment if rewards is None else rewards, "measure", MEAN_REWARD)


def score_trajectories(trajectories: Sequence[Trajectory], measure: str = EXACT_MATCH) -> Score:
    """Compute the score of finished, scored rollouts, one per task; at least one."""
    rewards = [trajectory.reward for trajectory in trajectories]
    return score_values(rewards, [t.task.stratum for t in trajectories], measure)


def score_values(values: Sequence[float], strata: Sequence[str], measure: str) -> Score:
    """Compute the score of values, one for each question, at least one; a stratum of "" is none."""
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


def recorded_score(
    event: Mapping[str, Any], rollouts: Sequence[Mapping[str, Any]], measure: str
) -> Score:
    """Return the score of an "evaluated" event, from its stored rollouts.

    Without them it is the event's own figures; only a share of right answers then has an interval.
    """
    if rollouts:
        strata = [str(rollout["task"]["stratum"]) for rollout in rollouts]
        return score_values(
            [float(rollout["reward"] or 0.0) for rollout in rollouts], strata, measure
        )
    n = event.get("n") or 0
    by_stratum = {name: (mean, of) for name, (mean, of) in (event.get("by_stratum") or {}).items()}
    deviation = None if measure == EXACT_MATCH and n else 0.0
    return Score(event["em"], n, by_stratum, measure, deviation)


def difference_interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of differences, one a question: Student's t.

    It is cut to [-1, 1] if all differences are in it. Equal differences of -1, 0 or 1 have that of the shares of
    questions that were gained and lost (Wilson's, at their far ends), so that it is not zero wide; other equal ones
    have none.
    """
    n = len(differences)
    deviation = stdev(differences) if n > 1 else 0.0
    if deviation > 1e-12:  # not the noise of subtracting
        ends = t_interval(sum(differences) / n, deviation, n, bounded=False, fewest=2)
        within = max(map(abs, differences)) <= 1
        return (max(-1.0, ends[0]), min(1.0, ends[1])) if ends and within else ends
    if not set(differences) <= {-1.0, 0.0, 1.0}:
        return None
    gained = wilson(float(differences[0] > 0), n)
    lost = wilson(float(differences[0] < 0), n)
    return gained[0] - lost[1], gained[1] - lost[0]


def t_interval(
    mean: float, deviation: float, n: int, *, bounded: bool, fewest: int = _FEWEST
) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean by Student's t; None if `n` values are too few for one.

    Args:
        deviation: the values' sample standard deviation.
        bounded: whether the values are in [0, 1]: the interval is cut to that, and two values are enough for one.
        fewest: how many values others need: an interval of fewer would be too wide to be useful.
    """
    if n < (2 if bounded else fewest):
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
