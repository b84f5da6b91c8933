"""Intervals and differences over seeds and questions."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cotune.run.scores import EXACT_MATCH, difference_interval, score_values

Rewards = NDArray[np.float64]
Indices = NDArray[np.int64]
Ends = tuple[float, float]
RESAMPLES = 4000
_NOISE = 1e-12  # of sums of equal numbers


@dataclass(frozen=True)
class Samples:
    """Held-out rewards of one method, or their differences from a baseline's.

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


def interval(samples: Samples) -> Ends | None:
    """Return the 95 % interval of the mean reward, over what was varied: questions, and seeds if several.

    Of one seed it is the interval that every other table shows (`run.scores.Score`). None if nothing is known of
    the spread.
    """
    ends = _bootstrap(samples)
    if ends is None:
        values = _of_one_seed(samples)
        ends = score_values(values, [""] * len(values), EXACT_MATCH).interval
    return ends


def gain(method: Samples, baseline: Samples) -> tuple[float, Ends | None] | None:
    """Return the mean difference of rewards and its interval, paired by seed and question.

    None if the two do not have the same questions.
    """
    if method.questions.shape != baseline.questions.shape or not bool(
        (method.questions == baseline.questions).all()
    ):
        return None
    differences = replace(method, rewards=method.rewards - baseline.rewards)
    ends = _bootstrap(differences)
    if ends is None:
        ends = difference_interval(_of_one_seed(differences))
    return float(differences.rewards.mean()), ends


def _of_one_seed(samples: Samples) -> list[float]:
    """Return the values by question: equal results of several seeds say no more than one of other questions."""
    return (samples.rewards[0] if samples.shared else samples.rewards.ravel()).tolist()


def _bootstrap(samples: Samples) -> Ends | None:
    """Return the percentiles of a stratified bootstrap; None for one seed, or if no resample differs.

    Seeds are resampled, and questions within their strata: the same ones for every seed if all seeds
    have the same questions (crossed), otherwise each seed's own (nested). The interval is conservative: what is
    random in a single rollout is counted up to three times (Owen 2007, the pigeonhole bootstrap), so that it is up
    to 1.7 times too wide if little else differs.
    """
    values = samples.rewards
    if len(values) == 1:
        return None
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
        values[rows[:, None], [questions[frame][i] for frame in own_frames]].mean()
        for i, (rows, own_frames) in enumerate(zip(seeds, frame_of, strict=True))
    ]
    low, high = np.percentile(means, [2.5, 97.5])
    return (float(low), float(high)) if high - low > _NOISE else None
