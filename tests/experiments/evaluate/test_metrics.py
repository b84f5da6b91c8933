"""Metrics by hand."""

from collections.abc import Sequence

import pytest

from cotune.experiments.evaluate.evaluation import Figure, figures_of, metric_functions
from cotune.rewards.qa import f1_hotpot, f1_squad
from cotune.run.scores import wilson
from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory, Turn


def test_intervals_count_questions_and_not_samples() -> None:
    def interval(*values: float) -> tuple[float, float] | None:
        return greedy("reward", values, [""] * len(values)).interval

    assert interval(1.0, 0.0, 0.0) == wilson(1 / 3, 3)
    # A deviation of √(0.5 / 4) over √5 questions; t of four degrees is 2.776445.
    spread = 2.776445 * (0.125 / 5) ** 0.5
    assert interval(0.0, 0.5, 0.5, 0.5, 1.0) == pytest.approx((0.5 - spread, 0.5 + spread))
    assert interval(0.25, 0.75) == (0.0, 1.0)
    assert interval(0.5) is None
    low, high = interval(1.2, -0.4, 1.2, -0.4, 0.4) or (0, 0)
    assert low < 0 < 1 < high
    (sampled,) = figures_of("best", "f1", "F1", {"sampled": [[0.0, 1.0], [0.5, 0.5]]}, ["", ""])
    assert (sampled.n, sampled.interval) == (2, wilson(0.5, 2))


def greedy(metric: str, values: Sequence[float], strata: Sequence[str]) -> Figure:
    (found,) = figures_of("best", metric, metric, {"greedy": [[value] for value in values]}, strata)
    return found


def test_a_figure_overall_and_by_stratum() -> None:
    found = greedy("f1", [1.0, 0.5, 0.0], ["b", "a", "b"])
    assert found.mean == pytest.approx(0.5)
    assert found.n == 3
    assert list(found.by_stratum.items()) == [
        ("a", {"mean": 0.5, "n": 1}),
        ("b", {"mean": 0.5, "n": 2}),
    ]
    assert greedy("f1", [1.0], [""]).by_stratum == {}


def means(figures: list[Figure]) -> dict[str, float]:
    return {f.statistic: f.mean for f in figures}


def test_figures_of_samples() -> None:
    samples = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]
    found = means(figures_of("best", "reward", "exact match", {"sampled": samples}, ["x", "y"]))
    assert found == pytest.approx({"avg@4": 0.625, "pass@4": 1})
    # What is right in part has not passed; what is right and more has.
    partly = means(
        figures_of("best", "reward", "mean reward", {"sampled": [[0.9, 0.0], [1.2, 0.2]]}, ["", ""])
    )
    assert partly == pytest.approx({"avg@2": 0.575, "pass@2": 0.5})
    assert means(figures_of("best", "f1", "F1", {"sampled": samples}, ["", ""])) == {"avg@4": 0.625}


def rollout(text: str, answer: str | None, answers: tuple[str, ...]) -> Trajectory:
    assignment = Assignment(Task("t", "q", answers), Prompt("i"), Prompt("i"), "", 0)
    return Trajectory(
        assignment, (1,), (1,), (2,), (1,), (0.0,), (Turn(text),), StopReason.ANSWERED, answer, 0.3
    )


def test_the_value_of_a_rollout_by_each_metric() -> None:
    functions = metric_functions(f1_squad)
    text = r"\boxed{x}. But that is wrong. \boxed{\frac{2}{4}}"
    one = rollout(text, "the red cat", (r"\boxed{1/2}", "Red dog"))
    values = {name: value([one])[0] for name, value in functions.items()}
    assert values == {"reward": 0.3, "exact_match": 0, "f1": 0.5, "boxed": 1}
    none = rollout("nothing", None, ("a",))
    assert [functions[name]([none])[0] for name in ("exact_match", "f1", "boxed")] == [0, 0, 0]
    yes = rollout("", "yes it is", ("yes",))
    assert functions["f1"]([yes]) == pytest.approx([0.5])
    assert metric_functions(f1_hotpot)["f1"]([yes]) == [0]
