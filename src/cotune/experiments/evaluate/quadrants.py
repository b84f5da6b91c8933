"""Locate a joint method's gain: scores of {initial, trained weights} × {initial, best instruction}.

`Quadrants` holds the rewards question by question; means, gains and their intervals are derived. The
file quadrants.json of a run folder contains both.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from pydantic.dataclasses import dataclass

from cotune.errors import ConfigError
from cotune.run.best import FILE as BEST
from cotune.run.json_files import Row, write_json_atomic
from cotune.utils.text import command_on, one_line

FILE = "quadrants.json"
SCHEMA_VERSION = 1
WEIGHTS = ("initial", "trained")
PROMPTS = ("plain", "prompted")
"""Under the initial instruction, and under the best one."""
QUADRANTS = tuple(f"{weights}_{prompt}" for weights in WEIGHTS for prompt in PROMPTS)
DECODINGS = ("greedy", "sampled")
GAINS: Mapping[str, tuple[str, str]] = {
    "both": ("trained_prompted", "initial_plain"),
    "weights_plain": ("trained_plain", "initial_plain"),
    "weights_prompted": ("trained_prompted", "initial_prompted"),
    "prompt_initial": ("initial_prompted", "initial_plain"),
    "prompt_trained": ("trained_prompted", "trained_plain"),
}
"""Differences of quadrants: the whole gain; the gain of the weights under each instruction; the gain of the
best instruction with the initial and with the trained weights."""


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` questions with its 95 % interval, by the bootstrap over questions."""

    mean: float
    interval: tuple[float, float]
    n: int


@dataclass(frozen=True, kw_only=True)
class Quadrants:
    """The scores of a run's four quadrants on held-out questions.

    A quadrant is named "{weights}_{prompt}": "trained_plain" are the trained weights under the initial
    instruction. `rewards` and `divergences` have one entry a question.

    Attributes:
        split, measure: the questions, and the name of the mean reward.
        samples, temperature: k sampled rollouts a question, and their temperature.
        initial, best: the two instructions. If they are equal, the two prompts coincide.
        trained: whether the weights were; if not, the two weights coincide.
        questions, strata: the id of each question, and its stratum.
        rewards: by quadrant and decoding: of the greedy rollout, and the mean of the sampled ones.
        divergences: by prompt, the sum of KL(π_trained ‖ π_initial) over the own tokens of one sampled
            rollout of the trained policy, in nats, and the number of these tokens. Empty if the
            weights were not trained.
        scores: mean rewards by quadrant and decoding.
        gains: the differences of `GAINS`, paired by question, by name and decoding.
        divergence: by prompt, the mean KL of a token.
        since: the run folder, relative to this one, whose policy and instruction the initial ones are;
            "" for this run's own.
        rollouts, generated_tokens: the cost of the evaluation.
        of: hash of the run's best.json, which shows whether this is still its best policy.
        created: Unix time.
    """

    split: str
    measure: str
    samples: int
    temperature: float
    initial: str
    best: str
    trained: bool
    questions: tuple[str, ...]
    strata: tuple[str, ...]
    rewards: Mapping[str, Mapping[str, tuple[float, ...]]]
    divergences: Mapping[str, tuple[tuple[float, int], ...]]
    scores: Mapping[str, Mapping[str, Estimate]]
    gains: Mapping[str, Mapping[str, Estimate]]
    divergence: Mapping[str, Estimate]
    since: str = ""
    rollouts: int = 0
    generated_tokens: int = 0
    of: str = ""
    created: float = field(default_factory=time.time)

    @classmethod
    def measured(
        cls,
        *,
        questions: Sequence[str],
        strata: Sequence[str],
        rewards: Mapping[str, Mapping[str, Sequence[float]]],
        divergences: Mapping[str, Sequence[tuple[float, int]]],
        **others: Any,
    ) -> Self:
        """Compute the scores of some rewards. The arguments are the attributes."""

        def estimates(values: Mapping[str, Sequence[float]]) -> dict[str, Estimate]:
            return {name: mean_estimate(each, questions, strata) for name, each in values.items()}

        def gained(one: str, other: str) -> dict[str, list[float]]:
            return {
                decoding: np.subtract(rewards[one][decoding], rewards[other][decoding]).tolist()
                for decoding in DECODINGS
            }

        others["scores"] = {name: estimates(each) for name, each in rewards.items()}
        others["gains"] = {name: estimates(gained(*pair)) for name, pair in GAINS.items()}
        per_prompt = {prompt: per_question(each) for prompt, each in divergences.items()}
        return cls(
            questions=tuple(questions),
            strata=tuple(strata),
            rewards=cast(Any, rewards),  # pydantic makes tuples of the lists
            divergences=cast(Any, divergences),
            divergence=estimates(per_prompt),
            **others,
        )

    @property
    def prompts(self) -> tuple[str, ...]:
        """Return the prompts that differ."""
        return PROMPTS if self.best != self.initial else PROMPTS[:1]

    @property
    def weights(self) -> tuple[str, ...]:
        """Return the weights that differ."""
        return WEIGHTS if self.trained else WEIGHTS[:1]

    def write(self, folder: Path) -> None:
        """Replace quadrants.json in a run folder."""
        write_json_atomic(folder / FILE, as_json(self))


def mean_estimate(
    values: Sequence[float], questions: Sequence[str], strata: Sequence[str]
) -> Estimate:
    """Return the mean of a value a question, with its interval by the stratified bootstrap."""
    from cotune.experiments.compare.statistics import Samples, interval  # loads scipy

    array = np.array([values], dtype=float)
    ends = interval(Samples(array, np.array([questions]), np.array([strata])))
    return Estimate(float(array.mean()), ends, len(questions))


def per_question(divergences: Sequence[tuple[float, int]]) -> list[float]:
    """Return a value for each question whose mean is Σ sums / Σ tokens.

    A question's value is the ratio plus its own part of the ratio's first-order deviation
    (Σ sums − ratio · tokens, over the mean number of tokens), so that an interval of the mean
    is also one of the ratio.

    >>> per_question(((1.0, 1), (2.0, 5)))
    [0.6666666666666666, 0.33333333333333337]
    """
    tokens = sum(count for _, count in divergences) / len(divergences)
    ratio = sum(total for total, _ in divergences) / len(divergences) / tokens
    return [ratio + (total - ratio * count) / tokens for total, count in divergences]


def as_json(quadrants: Quadrants) -> Row:
    """Return the content of quadrants.json."""
    return {"schema_version": SCHEMA_VERSION, "kind": "quadrants", **asdict(quadrants)}


def read_quadrants(folder: Path) -> Quadrants | None:
    """Read a run folder's quadrants.json; None if there is none, or the best policy has changed since.

    Raises:
        ConfigError: it cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        row = json.loads(path.read_bytes())
        if row.pop("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"its schema_version is not {SCHEMA_VERSION}")
        quadrants = Quadrants(**row)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({one_line(str(error))}); write it again with: "
            f"{command_on(folder, 'evaluate', '--quadrants')}"
        ) from error
    return quadrants if quadrants.of == hash_of_best(folder) else None


def hash_of_best(folder: Path) -> str:
    """Return the hash of the best.json of a run folder; "" if there is none."""
    try:
        return hashlib.sha256((folder / "best" / BEST).read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""


def relative(folder: Path, run: Path) -> str:
    """Return the path of a folder relative to a run's, which stays the same if both are moved."""
    return Path(os.path.relpath(folder.resolve(), run.resolve())).as_posix()
