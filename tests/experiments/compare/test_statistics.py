"""Intervals and probabilities against numbers worked by hand."""

import numpy as np
import pytest

from cotune.experiments.compare.statistics import (
    Samples,
    gain,
    interval,
    probability_of_improvement,
)


def samples(
    rewards: list[list[float]], strata: list[str] | None = None, own: bool = False
) -> Samples:
    """Seeds' rewards; with `own` each seed has questions of its own."""
    values = np.array(rewards, dtype=float)
    seeds, questions = values.shape
    ids = [[f"{s if own else ''}q{q}" for q in range(questions)] for s in range(seeds)]
    names = strata or [""] * questions
    return Samples(values, np.array(ids), np.array([names] * seeds))


def test_nothing_to_resample_is_a_point() -> None:
    assert interval(samples([[1.0]])) == (1.0, 1.0)
    assert interval(samples([[1.0, 1.0], [1.0, 1.0]])) == (1.0, 1.0)


def test_seeds_alone() -> None:
    # Two seeds of mean 0 and 1: the mean of two draws is 0, ½ or 1 with chances ¼, ½, ¼.
    assert interval(samples([[0.0], [1.0]])) == (0.0, 1.0)


def test_one_seeds_questions_have_the_binomial_interval() -> None:
    low, high = interval(samples([[1.0] * 50 + [0.0] * 50]))
    # 1.96 × √(¼ / 100) = 0.098
    assert low == pytest.approx(0.402, abs=0.012)
    assert high == pytest.approx(0.598, abs=0.012)


def test_strata_are_resampled_within() -> None:
    # Questions differ between the strata alone, so nothing varies.
    rewards = [[1.0] * 10 + [0.0] * 10]
    assert interval(samples(rewards, ["easy"] * 10 + ["hard"] * 10)) == (0.5, 0.5)
    low, high = interval(samples(rewards))
    assert low < 0.4
    assert high > 0.6


def test_questions_that_seeds_share_are_resampled_together() -> None:
    # Every seed is right on the same half. Shared, the seeds tell nothing new; of one's own, they do.
    rewards = [[1.0] * 20 + [0.0] * 20] * 8
    shared, own = interval(samples(rewards)), interval(samples(rewards, own=True))
    assert shared[1] - shared[0] > 1.5 * (own[1] - own[0])


def test_a_gain_is_paired() -> None:
    baseline = samples([[1.0, 0.0] * 10, [0.0, 1.0] * 10])
    better = Samples(baseline.rewards + 0.25, baseline.questions, baseline.strata)
    assert gain(better, baseline) == (0.25, (0.25, 0.25))
    assert gain(samples([[1.0, 0.0] * 10] * 3), baseline) is None
    assert gain(samples(baseline.rewards.tolist(), own=True), baseline) is None


def test_probability_of_improvement() -> None:
    # Seeds' means on "a": ours 1, 1 against 0, 1 (wins 2, ties 2 of 4: ¾); on "b": all equal (½).
    ours = samples([[1.0, 0.5], [1.0, 0.5]], ["a", "b"])
    theirs = samples([[0.0, 0.5], [1.0, 0.5]], ["a", "b"])
    assert probability_of_improvement(ours, theirs) == pytest.approx((0.75 + 0.5) / 2)
    assert probability_of_improvement(theirs, ours) == pytest.approx((0.25 + 0.5) / 2)


def test_a_focus_keeps_the_questions_of_its_strata() -> None:
    whole = samples([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], ["short x", "long x", "long y"])
    focused = whole.focused("long")
    assert focused.rewards.tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert focused.questions.tolist() == [["q1", "q2"]] * 2
    assert whole.focused(None) is whole
    assert whole.by_stratum() == {"long x": 0.5, "long y": 0.0, "short x": 1.0}
