"""Metrics of an evaluation: the value of a rollout, and figures over several rollouts per question."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from cotune.environments.math import MathEnvironment
from cotune.rewards import Reward, exact_match
from cotune.rewards.functions import AnswerReward
from cotune.run.scores import score_values
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
        column: the name of the prompt and policy that it is of.
        metric: a name of `METRICS`.
        title: its name in tables; "exact match" for a reward that is exact match.
        statistic: "greedy", "avg@8", "pass@4", …
        mean: mean over questions.
        interval: 95 %, lower and upper end; None if a single question gives no spread.
        n: questions.
        by_stratum: the "mean" and the number of questions, "n", of each stratum, in name order.
    """

    column: str
    metric: str
    title: str
    statistic: str
    mean: float
    interval: tuple[float, float] | None
    n: int
    by_stratum: Mapping[str, Mapping[str, float]]


def figures_of(
    column: str,
    metric: str,
    title: str,
    values: Mapping[str, Sequence[Sequence[float]]],
    strata: Sequence[str],
) -> list[Figure]:
    """Return the figures of a metric: greedy, and of k samples avg@k and pass@k.

    The samples of a question are not independent trials: they enter as their mean, and intervals count
    questions. A sample passes if its value reaches `PASSES_AT`: pass@k is the share of questions that one
    of them answers. F1 has none, since part of an answer is not an answer.

    Args:
        values: by decoding, "greedy" and "sampled", the values of each question's rollouts.
        strata: the stratum of each question; "" for none.
    """
    by_statistic: dict[str, Sequence[float]] = {}
    for decoding, rows in values.items():
        if decoding == "greedy":
            by_statistic["greedy"] = [value for (value,) in rows]
        else:
            k = len(rows[0])
            by_statistic[f"avg@{k}"] = [fmean(row) for row in rows]
            if metric != "f1":
                by_statistic[f"pass@{k}"] = [float(max(row) >= PASSES_AT) for row in rows]
    figures: list[Figure] = []
    for statistic, each in by_statistic.items():
        score = score_values(each, strata, title)
        by_stratum = {name: {"mean": em, "n": n} for name, (em, n) in score.by_stratum.items()}
        interval = score.interval
        figures.append(
            Figure(column, metric, title, statistic, score.em, interval, score.n, by_stratum)
        )
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
        "boxed": AnswerReward("boxed"),
    }


def is_boxed(environment: object) -> bool:
    """Return whether an environment scores boxed answers."""
    return isinstance(environment, MathEnvironment)
