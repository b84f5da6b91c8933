"""Intervals and comparisons over seeds and questions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Rewards = NDArray[np.float64]
Indices = NDArray[np.int64]
RESAMPLES = 4000


@dataclass(frozen=True)
class Samples:
    """Held-out rewards of one method.

    Attributes:
        rewards: (S seeds, Q questions).
        questions: ids, (S, Q); a suite may give each seed other questions.
        strata: the stratum of each question, (S, Q); "" if the environment has none.
    """

    rewards: Rewards
    questions: NDArray[np.str_]
    strata: NDArray[np.str_]

    def focused(self, prefix: str | None) -> "Samples":
        """Return only the questions whose stratum begins with `prefix`: as many for each seed."""
        if prefix is None:
            return self
        keep = np.char.startswith(self.strata, prefix)
        shape = (len(keep), -1)
        return Samples(
            self.rewards[keep].reshape(shape),
            self.questions[keep].reshape(shape),
            self.strata[keep].reshape(shape),
        )

    @property
    def shared(self) -> bool:
        """True if all seeds have the same questions in the same order."""
        return bool((self.questions == self.questions[0]).all())

    def by_stratum(self) -> dict[str, float]:
        """Return the mean reward of each stratum, in name order."""
        names = sorted(set(self.strata.ravel().tolist()) - {""})
        return {name: float(self.rewards[self.strata == name].mean()) for name in names}


def interval(samples: Samples, values: Rewards | None = None) -> tuple[float, float]:
    """Return the 95 % interval of the mean reward: a stratified bootstrap's percentiles.

    Seeds are resampled, and questions within their strata: the same ones for every seed if all seeds
    have the same questions (crossed), otherwise each seed's own (nested). With several seeds the interval is
    conservative: what is random in a single rollout is counted up to three times (Owen 2007, the pigeonhole
    bootstrap), so that it is up to 1.7 times too wide if little else differs. With one seed, only questions
    are resampled.

    Args:
        samples: the seeds and questions that are resampled.
        values: the values to average, (S, Q); the rewards by default. With the differences of two
            methods' rewards, this is the interval of the gain.
    """
    values = samples.rewards if values is None else values
    random = np.random.default_rng(0)

    def resampled(indices: Indices) -> Indices:
        """Draw as many of these as there are, RESAMPLES times."""
        if len(indices) == 1:
            return np.broadcast_to(indices, (RESAMPLES, 1))
        return indices[random.integers(0, len(indices), (RESAMPLES, len(indices)))]

    frames = samples.strata[:1] if samples.shared else samples.strata
    questions = [
        np.hstack([resampled(np.flatnonzero(strata == name)) for name in np.unique(strata)])
        for strata in frames
    ]
    seeds = resampled(np.arange(len(values)))
    frame_of = seeds if len(frames) > 1 else np.zeros_like(seeds)
    # A resample at a time: all at once would take gigabytes.
    means = [
        values[rows[:, None], [questions[frame][i] for frame in own]].mean()
        for i, (rows, own) in enumerate(zip(seeds, frame_of, strict=True))
    ]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def gain(method: Samples, baseline: Samples) -> tuple[float, tuple[float, float]] | None:
    """Return the mean difference of rewards and its interval, paired by seed and question.

    None if the two do not have the same questions.
    """
    if method.questions.shape != baseline.questions.shape or not bool(
        (method.questions == baseline.questions).all()
    ):
        return None
    differences = method.rewards - baseline.rewards
    return float(differences.mean()), interval(method, differences)


def probability_of_improvement(method: Samples, baseline: Samples) -> float:
    """Return P(a run of the method scores above a run of the baseline), averaged over strata.

    Agarwal et al. 2021 (arXiv 2108.13264): Mann-Whitney's U over the seeds' mean rewards, ties
    counted as half, divided by the number of pairs; strata take the place of their tasks.
    """
    names = sorted(set(method.strata.ravel().tolist()))
    return float(np.mean([_chance(_means(method, name), _means(baseline, name)) for name in names]))


def _means(samples: Samples, stratum: str) -> Rewards:
    """Return the mean reward of each seed on a stratum, (S,)."""
    mine = samples.strata == stratum
    pairs = zip(samples.rewards, mine, strict=True)
    return np.array([row[keep].mean() for row, keep in pairs if keep.any()])


def _chance(ours: Rewards, theirs: Rewards) -> float:
    pairs: Sequence[int] = (len(ours), len(theirs))
    if not all(pairs):
        return float("nan")
    u = cast(float, stats.mannwhitneyu(ours, theirs).statistic)
    return u / (pairs[0] * pairs[1])
