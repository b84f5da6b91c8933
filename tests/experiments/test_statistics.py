"""Intervals and gains against numbers worked by hand."""

import pandas as pd
import pytest

from cotune.experiments.statistics import gain, interval
from cotune.run.scores import wilson


def samples(
    rewards: list[list[float]], strata: list[str] | None = None, disjoint: bool = False
) -> pd.DataFrame:
    """Seeds' rewards; with `disjoint` each seed has questions of its own."""
    rows = [
        (seed, f"{seed if disjoint else ''}q{i}", strata[i] if strata else "", reward)
        for seed, of_seed in enumerate(rewards)
        for i, reward in enumerate(of_seed)
    ]
    return pd.DataFrame(rows, columns=["seed", "question", "stratum", "reward"])


def test_one_seed_has_the_interval_of_every_other_table() -> None:
    assert interval(samples([[1.0] * 50 + [0.0] * 50])) == wilson(0.5, 100)
    assert interval(samples([[1.0] * 10 + [0.0] * 10], ["easy"] * 10 + ["hard"] * 10)) == wilson(
        0.5, 20
    )
    assert interval(samples([[1.5]])) is None


@pytest.mark.parametrize(
    ("rewards", "disjoint", "n"),
    [
        ([[0.0] * 3], False, 3),
        ([[0.0] * 3] * 2, False, 3),
        ([[0.0] * 3] * 2, True, 6),
        ([[1.0] * 4] * 3, False, 4),
    ],
)
def test_equal_rewards_are_no_certainty(rewards: list[list[float]], disjoint: bool, n: int) -> None:
    """Seeds that agree on the same questions say no more of others than one seed does."""
    assert interval(samples(rewards, disjoint=disjoint)) == wilson(rewards[0][0], n)
    assert interval(samples([[2.5] * 9] * 2)) is None


def test_seeds_alone() -> None:
    # Two seeds of mean 0 and 1: the mean of two draws is 0, ½ or 1 with chances ¼, ½, ¼.
    assert interval(samples([[0.0], [1.0]])) == (0.0, 1.0)


def test_strata_are_resampled_within() -> None:
    # Questions differ between the strata, and one seed's first question.
    rewards = [[1.0] * 10 + [0.0] * 10, [0.0] + [1.0] * 9 + [0.0] * 10]
    low, high = interval(samples(rewards, ["easy"] * 10 + ["hard"] * 10)) or (0, 1)
    assert 0.35 < low < high <= 0.5
    low, high = interval(samples(rewards)) or (0, 1)
    assert low < 0.35
    assert high > 0.6


def test_questions_that_seeds_share_are_resampled_together() -> None:
    # Every seed is right on the same half. Shared, the seeds tell nothing new; of one's own, they do.
    rewards = [[1.0] * 20 + [0.0] * 20] * 8
    shared = interval(samples(rewards)) or (0, 0)
    disjoint = interval(samples(rewards, disjoint=True)) or (0, 1)
    assert shared[1] - shared[0] > 1.5 * (disjoint[1] - disjoint[0])


def test_a_gain_is_paired() -> None:
    rewards = [[1.0, 0.0] * 10, [0.0, 1.0] * 10]
    baseline = samples(rewards)
    better = baseline.assign(reward=baseline.reward + 0.25)
    assert gain(better, baseline) == (0.25, None)
    assert gain(samples([[1.0, 0.0] * 10] * 3), baseline) is None
    assert gain(samples(rewards, disjoint=True), baseline) is None
    one_seed = samples([[1.0, 0.0] * 10])
    assert gain(one_seed, one_seed) == (0.0, (-wilson(0, 20)[1], wilson(0, 20)[1]))
