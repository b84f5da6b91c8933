"""Metrics of an evaluation: the value of a rollout, and figures over several rollouts per question."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from cotune.environments.math import MathEnvironment
from cotune.rewards import Reward, exact_match
from cotune.rewards.functions import boxed_rewards
from cotune.run.scores import deviation_of, t_interval, wilson
from cotune.types import Trajectory

METRICS: Mapping[str, str] = {
    "reward": "mean reward",
    "exact_match": "exact match",
    "f1": "F1",
    "boxed": "boxed accuracy",
}
"""The metrics: name on the command line, and title in tables."""

PASSES_AT = 1.0
"""The lowest value at which a sample counts as right in pass@k."""


@dataclass(frozen=True)
class Figure:
    """One number of an evaluation.

    Attributes:
        metric: a name of `METRICS`.
        title: its name in tables; "exact match" for a reward that is exact match.
        statistic: "greedy", "avg@8", "pass@4", …
        mean: mean over questions.
        interval: 95 %, lower and upper end; None if a single question gives no spread.
        n: questions.
        by_stratum: (mean, questions) of each stratum, in name order.
    """

    metric: str
    title: str
    statistic: str
    mean: float
    interval: tuple[float, float] | None
    n: int
    by_stratum: Mapping[str, tuple[float, int]]


def figure(
    metric: str, title: str, statistic: str, values: Sequence[float], strata: Sequence[str]
) -> Figure:
    """Return the mean of one value per question, overall with its interval, and by stratum.

    Args:
        strata: the stratum of each question; "" for none.
    """
    groups: dict[str, list[float]] = defaultdict(list)
    for value, stratum in zip(values, strata, strict=True):
        groups[stratum].append(value)
    by_stratum = {name: (sum(v) / len(v), len(v)) for name, v in sorted(groups.items()) if name}
    mean = sum(values) / len(values)
    bounded = metric != "reward" or all(0 <= value <= 1 for value in values)
    interval = mean_interval(values, bounded=bounded)
    return Figure(metric, title, statistic, mean, interval, len(values), by_stratum)


def mean_interval(values: Sequence[float], *, bounded: bool = False) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean: Wilson's for zeros and ones, otherwise Student's t.

    The samples of a question are not independent trials, so they enter as their mean: n counts
    questions.

    Args:
        bounded: whether the mean is in [0, 1], and the interval is cut to that.

    Returns:
        The lower and upper end; None for a single value that is neither 0 nor 1, and for fewer than
        five that are not bounded.
    """
    n = len(values)
    if n < 1:
        raise ValueError("no values; expected one a question")
    mean = sum(values) / n
    if set(values) <= {0.0, 1.0}:
        return wilson(mean, n)
    return t_interval(mean, deviation_of(values), n, bounded=bounded)


def sampled_figures(
    metric: str, title: str, samples: Sequence[Sequence[float]], strata: Sequence[str]
) -> list[Figure]:
    """Return avg@k of k samples per question, and pass@k: the questions that one of them answers.

    A sample passes if its value reaches `PASSES_AT`. F1 has no pass@k, since part of an answer
    is not an answer.
    """
    k = len(samples[0])
    figures = [figure(metric, title, f"avg@{k}", [fmean(values) for values in samples], strata)]
    if metric != "f1":
        passed = [float(max(values) >= PASSES_AT) for values in samples]
        figures.append(figure(metric, title, f"pass@{k}", passed, strata))
    return figures


Values = Callable[[Sequence[Trajectory]], list[float]]


def metric_functions(f1: Reward) -> dict[str, Values]:
    """Return the functions that give a batch of finished, scored rollouts its values, by metric.

    `boxed` reads the last box of the policy's own text; a reference answer may be a text with a box.

    Args:
        f1: the data set's scorer, `f1_squad` or `f1_hotpot`.
    """
    return {
        "reward": lambda ts: [t.reward for t in ts],
        "exact_match": lambda ts: [exact_match(t.answer, t.task.answers) for t in ts],
        "f1": lambda ts: [f1(t.answer, t.task.answers) for t in ts],
        "boxed": boxed_rewards(),
    }


def is_boxed(environment: object) -> bool:
    """Return whether an environment scores boxed answers."""
    return isinstance(environment, MathEnvironment)
