"""The score of a set of rollouts: the mean reward with its interval, and the means of strata."""

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
_Z = 1.959964  # normal quantile of a 95 % interval
_NOISE = 1e-12  # the deviation of equal numbers, from rounding


@dataclass(frozen=True)
class Score:
    """The mean reward of one rollout per task; exact match if that is the reward.

    Attributes:
        em: the mean.
        n: rollouts.
        by_stratum: (mean, rollouts) of each stratum, in name order.
        measure: the name of the reward, for titles.
        interval: the 95 % confidence interval of the mean; see `mean_interval`.
    """

    em: float
    n: int
    by_stratum: Mapping[str, tuple[float, int]]
    measure: str = EXACT_MATCH
    interval: tuple[float, float] | None = None


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
    by_stratum = {name: (sum(v) / len(v), len(v)) for name, v in sorted(groups.items()) if name}
    mean = sum(values) / len(values)
    return Score(mean, len(values), by_stratum, measure, mean_interval(values))


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
    interval = wilson(event["em"], n) if measure == EXACT_MATCH and n else None
    return Score(event["em"], n, by_stratum, measure, interval)


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of rewards: Wilson's if all are 0 or 1, else Student's t; None for equal ones."""
    if set(values) <= {0.0, 1.0}:
        return wilson(sum(values) / len(values), len(values))
    return t_interval(values, 0.0, 1.0)


def difference_interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of differences, one a question: Student's t.

    Equal differences of -1, 0 or 1 have that of the shares of questions that were gained and lost (Wilson's, at their
    far ends), so that it is not zero wide; other equal ones have none.
    """
    if not set(differences) <= {-1.0, 0.0, 1.0} or len(set(differences)) > 1:
        return t_interval(differences, -1.0, 1.0)
    n = len(differences)
    gained = wilson(float(differences[0] > 0), n)
    lost = wilson(float(differences[0] < 0), n)
    return gained[0] - lost[1], gained[1] - lost[0]


def t_interval(values: Sequence[float], low: float, high: float) -> tuple[float, float] | None:
    """Return Student's 95 % interval of a mean, cut to [low, high] if all values are in it; None for equal values."""
    n = len(values)
    deviation = stdev(values) if n > 1 else 0.0
    if deviation < _NOISE:
        return None
    from scipy.special import stdtrit

    mean = sum(values) / n
    spread = float(stdtrit(n - 1, 0.975)) * deviation / math.sqrt(n)
    if min(values) < low or max(values) > high:
        return mean - spread, mean + spread
    return max(low, mean - spread), min(high, mean + spread)


def wilson(share: float, n: int) -> tuple[float, float]:
    """Return Wilson's score interval of a share over `n` trials (Wilson 1927)."""
    z = _Z
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
