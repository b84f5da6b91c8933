"""Scores by hand."""

from typing import Any

import pytest

from cotune.run.scores import Score, measure_of, score_trajectories, wilson
from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory


class Named:
    """An environment, or reward functions, with a name for its mean."""

    measure = "exact match"


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


def test_interval_holds_the_mean() -> None:
    interval = Score(0.25, 40, {}).interval
    assert interval is not None
    assert interval[0] < 0.25 < interval[1]


def test_rewards_that_are_not_0_or_1_have_the_interval_of_their_mean() -> None:
    score = score_trajectories([rollout("", r) for r in (-1.0, 0.0, 4.0, -1.0, 3.0)], "mean reward")
    assert (score.em, score.measure) == (1.0, "mean reward")
    # s² = (4 + 1 + 9 + 4 + 4) / 4 = 5.5; t of four degrees is 2.776445.
    spread = 2.776445 * (5.5 / 5) ** 0.5
    assert score.interval == pytest.approx((1 - spread, 1 + spread), rel=1e-6)


def test_few_rewards_have_no_interval_beyond_the_possible() -> None:
    assert score_trajectories([rollout("", r) for r in (0.2, 1.0)]).interval == (0.0, 1.0)
    assert score_trajectories([rollout("", r) for r in (0.2, 1.4)]).interval is None


def test_equal_rewards_have_no_spread_and_a_single_one_no_interval() -> None:
    assert score_trajectories([rollout("", 0.5)] * 2).interval == (0.5, 0.5)
    assert score_trajectories([rollout("", 0.5)]).interval is None
    assert score_trajectories([rollout("", 1.0)]).interval == wilson(1.0, 1)


def test_what_a_score_is_of() -> None:
    named: Any = Named()
    other: Any = object()
    assert measure_of(named) == "exact match"
    assert measure_of(other) == "mean reward"
    assert measure_of(named, other) == "mean reward"
    assert measure_of(other, named) == "exact match"
