"""Scores by hand."""

from typing import Any

import pytest

from cotune.run.scores import difference_interval, score_trajectories, wilson
from cotune.types import Task, Trajectory
from tests.helpers import make_trajectory, under


def rollout(stratum: str, reward: float) -> Trajectory:
    task = Task(stratum, "q", ("a",), stratum)
    return make_trajectory(under(task), reward)


def test_score_by_hand() -> None:
    score = score_trajectories(
        [rollout("1 hop", 1.0), rollout("2 hops", 0.0), rollout("1 hop", 0.0)]
    )
    assert score.em == pytest.approx(1 / 3)
    assert score.n == 3
    assert score.by_stratum == {"1 hop": (0.5, 2), "2 hops": (0.0, 1)}
    assert score.interval == wilson(1 / 3, 3)
    # Nothing has no score.
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


@pytest.mark.parametrize(
    ("rewards", "interval"),
    [
        # s² = (4 + 1 + 9 + 4 + 4) / 4 = 5.5; t of four degrees is 2.776445.
        ((-1.0, 0.0, 4.0, -1.0, 3.0), (1 - 2.776445 * 1.1**0.5, 1 + 2.776445 * 1.1**0.5)),
        ((0.2, 1.0), (0.0, 1.0)),  # cut to the possible
        # Equal rewards are no certainty.
        ((0.0, 0.0, 0.0), wilson(0, 3)),
        ((1.0,), wilson(1.0, 1)),
        ((0.5, 0.5), None),
        ((0.5,), None),
    ],
)
def test_intervals(rewards: tuple[float, ...], interval: tuple[float, float] | None) -> None:
    score = score_trajectories([rollout("", reward) for reward in rewards], "mean reward")
    assert (score.n, score.measure) == (len(rewards), "mean reward")
    assert score.interval == (interval if interval is None else pytest.approx(interval, rel=1e-6))


@pytest.mark.parametrize(
    ("differences", "interval"),
    [
        # A deviation of ½ over two: ±3.182446 · ¼.
        ([1.0, 1.0, 1.0, 0.0], (0.75 - 0.7956, 1.0)),
        ([0.0] * 3, (-wilson(0, 3)[1], wilson(0, 3)[1])),
        ([1.0] * 3, (wilson(1, 3)[0] - wilson(0, 3)[1], 1.0)),
        ([-1.0], (-1.0, wilson(0, 1)[1] - wilson(1, 1)[0])),
        ([0.3 - 0.1, 0.2, 0.2], None),
        ([0.5], None),
    ],
)
def test_a_difference_that_is_always_the_same_is_no_certainty(
    differences: list[float], interval: Any
) -> None:
    bounds = difference_interval(differences)
    assert bounds == (interval and pytest.approx(interval, abs=1e-4))
