"""Scores by hand."""

import pytest

from cotune.experiments.evaluate import Score, mean_over, score_trajectories, wilson
from cotune.records import Assignment, Prompt, StopReason, Task, Trajectory


def rollout(stratum: str, reward: float) -> Trajectory:
    task = Task(stratum, "q", ("a",), stratum)
    assignment = Assignment(task, Prompt("i"), Prompt("i"), "i0", 0)
    return Trajectory(
        assignment, (1,), (1,), (2,), (1,), (0.0,), (), StopReason.ANSWERED, "a", reward
    )


def test_score_by_hand() -> None:
    score = score_trajectories(
        [rollout("1 hop", 1.0), rollout("2 hops", 0.0), rollout("1 hop", 0.0)]
    )
    assert score.em == pytest.approx(1 / 3)
    assert score.n == 3
    assert score.by_stratum == {"1 hop": (0.5, 2), "2 hops": (0.0, 1)}
    assert score.interval == wilson(1 / 3, 3)


def test_no_rollouts_have_no_score() -> None:
    with pytest.raises(ValueError, match="no rollouts"):
        score_trajectories([])


def test_wilson_by_hand() -> None:
    # p = 0.5, n = 96.04 z² = 3.8415: half-width z / (2 sqrt(n + z²)).
    low, high = wilson(0.5, 100)
    assert low == pytest.approx(0.5 - 1.959964 / 2 / (103.841459**0.5), abs=1e-6)
    assert low + high == pytest.approx(1.0)
    low, high = wilson(0.0, 10)
    assert low == pytest.approx(0.0, abs=1e-12)
    assert high == pytest.approx(3.841459 / 13.841459, abs=1e-6)


def test_wilson_needs_a_trial() -> None:
    with pytest.raises(ValueError, match="expected at least 1"):
        wilson(0.5, 0)


def test_mean_over_some_strata_by_hand() -> None:
    by_stratum = {"long a": (0.5, 2), "long b": (1.0, 6), "short a": (0.0, 9)}
    # (0.5 × 2 + 1.0 × 6) / 8.
    assert mean_over(by_stratum, ("long a", "long b", "long c")) == (0.875, 8)
    assert mean_over(by_stratum, ("1 hop",)) is None
    assert mean_over({}, ("long a",)) is None


def test_interval_holds_the_mean() -> None:
    low, high = Score(0.25, 40, {}).interval
    assert low < 0.25 < high
