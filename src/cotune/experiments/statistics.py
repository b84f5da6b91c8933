"""Intervals and differences over seeds and questions.

Scores are tables with a row for each held-out question of each seed, all seeds with as many, in order. Columns:
`seed`, `question` (its id; a suite may give each seed other questions), `stratum` ("" if the environment has none) and
`reward`, or its difference from a baseline's.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotune.run.scores import EXACT_MATCH, difference_interval, score_values

ScoreTable = Any
"""A `pandas.DataFrame`; pyright takes what is selected from one for a Series, too."""
Indices = NDArray[np.int64]
Ends = tuple[float, float]
RESAMPLES = 4000
_NOISE = 1e-12  # of sums of equal numbers


def focus_on(scores: ScoreTable, prefix: str | None) -> ScoreTable:
    """Return only the questions whose stratum begins with `prefix`; None for all."""
    return scores[scores["stratum"].str.startswith(prefix or "")]


def interval(scores: ScoreTable) -> Ends | None:
    """Return the 95 % interval of the mean reward, over what was varied: questions, and seeds if several.

    Of one seed it is the interval that every other table shows (`run.scores.Score`). None if nothing is known of
    the spread.
    """
    ends = _bootstrap(scores)
    if ends is None:
        values = _of_one_seed(scores)
        ends = score_values(values, [""] * len(values), EXACT_MATCH).interval
    return ends


def gain(method: ScoreTable, baseline: ScoreTable) -> tuple[float, Ends | None] | None:
    """Return the mean difference of rewards and its interval, paired by seed and question.

    None if the two do not have the same questions.
    """
    pairs = (each[["seed", "question"]].reset_index(drop=True) for each in (method, baseline))
    if not next(pairs).equals(next(pairs)):
        return None
    differences = method.assign(reward=method["reward"].to_numpy() - baseline["reward"].to_numpy())
    ends = _bootstrap(differences)
    if ends is None:
        ends = difference_interval(_of_one_seed(differences))
    return float(differences["reward"].mean()), ends


def _seeds(scores: ScoreTable) -> list[ScoreTable]:
    return [of_seed for _, of_seed in scores.groupby("seed", sort=False)]


def _shared(seeds: list[ScoreTable]) -> bool:
    """Return whether all seeds have the same questions in the same order."""
    return all(list(seed["question"]) == list(seeds[0]["question"]) for seed in seeds)


def _of_one_seed(scores: ScoreTable) -> list[float]:
    """Return the values by question: equal results of several seeds say no more than one of other questions."""
    seeds = _seeds(scores)
    return (seeds[0] if _shared(seeds) else scores)["reward"].tolist()


def _bootstrap(scores: ScoreTable) -> Ends | None:
    """Return the percentiles of a stratified bootstrap; None for one seed, or if no resample differs.

    Seeds are resampled, and questions within their strata: the same ones for every seed if all seeds
    have the same questions (crossed), otherwise each seed's own (nested). The interval is conservative: what is
    random in a single rollout is counted up to three times (Owen 2007, the pigeonhole bootstrap), so that it is up
    to 1.7 times too wide if little else differs.
    """
    seeds = _seeds(scores)
    if len(seeds) == 1:
        return None
    random = np.random.default_rng(0)

    def resampled(indices: Indices) -> Indices:
        """Draw as many of these as there are, RESAMPLES times."""
        if len(indices) == 1:
            return np.broadcast_to(indices, (RESAMPLES, 1))
        return indices[random.integers(0, len(indices), (RESAMPLES, len(indices)))]

    strata = [seed["stratum"].to_numpy() for seed in (seeds[:1] if _shared(seeds) else seeds)]
    questions = [
        np.hstack([resampled(np.flatnonzero(each == name)) for name in np.unique(each)])
        for each in strata
    ]
    seed_rows = resampled(np.arange(len(seeds)))
    frame_of = seed_rows if len(strata) > 1 else np.zeros_like(seed_rows)
    rewards = np.array([seed["reward"] for seed in seeds])
    # A resample at a time: all at once would take gigabytes.
    means = [
        rewards[rows[:, None], [questions[frame][i] for frame in frames]].mean()
        for i, (rows, frames) in enumerate(zip(seed_rows, frame_of, strict=True))
    ]
    low, high = np.percentile(means, [2.5, 97.5])
    return (float(low), float(high)) if high - low > _NOISE else None
