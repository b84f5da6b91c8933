"""Locate a joint method's gain: scores of {initial, trained weights} × {initial, best instruction}.

`Quadrants` holds the rewards question by question, as quadrants.json of a run folder does; means, gains and their
intervals follow from them.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path

import numpy as np
from pydantic.dataclasses import dataclass

from cotune.errors import ConfigError
from cotune.run.best import FILE as BEST
from cotune.run.json_files import Row, write_json_atomic
from cotune.run.scores import EXACT_MATCH, difference_interval, score_values
from cotune.utils.tables import Cell, Scores, Table
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
"""Differences of quadrants: the whole gain; that of the weights under each instruction; that of the instruction with
the initial and with the trained weights."""
_DERIVED = ("schema_version", "kind", "scores", "gains", "divergence")
_HEADINGS = {
    "initial": "initial weights",
    "trained": "trained weights",
    "plain": "initial instruction",
    "prompted": "best instruction",
}


@dataclass(frozen=True)
class Estimate:
    """A mean over questions with its 95 % interval; None if nothing is known of the spread."""

    mean: float
    interval: tuple[float, float] | None


@dataclass(frozen=True, kw_only=True)
class Quadrants:
    """The rewards of a run's four quadrants on held-out questions.

    A quadrant is named "{weights}_{prompt}": "trained_plain" are the trained weights under the initial
    instruction. `rewards` and `divergences` have one entry a question.

    Attributes:
        split, measure: the questions, and the name of the mean reward.
        samples, temperature: sampled rollouts a question, and their temperature.
        initial, best: the two instructions. If they are equal, the two prompts coincide.
        trained: whether the weights were; if not, the two weights coincide.
        questions, strata: the id and the stratum of each question.
        rewards: by quadrant and decoding: of the greedy rollout, and the mean of the sampled ones.
        divergences: by prompt, as in `PromptScores`. Empty if the weights were not trained, or a server sampled.
        since: the run folder, relative to this one, of the initial policy and instruction; "" for this one.
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
    since: str = ""
    rollouts: int = 0
    generated_tokens: int = 0
    of: str = ""
    created: float = field(default_factory=time.time)

    def score(self, quadrant: str, decoding: str) -> Estimate:
        """Return the mean reward of a quadrant."""
        score = score_values(self.rewards[quadrant][decoding], self.strata, self.measure)
        return Estimate(score.em, score.interval)

    def gain(self, name: str, decoding: str) -> Estimate:
        """Return a difference of `GAINS`, paired by question."""
        above, below = (self.rewards[quadrant][decoding] for quadrant in GAINS[name])
        differences = np.subtract(above, below).tolist()
        return Estimate(float(np.mean(differences)), difference_interval(differences))

    def divergence(self, prompt: str) -> Estimate:
        """Return the mean KL of a token, in nats."""
        values = per_question(self.divergences[prompt])
        ends = difference_interval(values) if any(values) else None
        return Estimate(float(np.mean(values)), ends and (max(0.0, ends[0]), ends[1]))

    def write(self, folder: Path) -> None:
        """Replace quadrants.json in a run folder."""
        write_json_atomic(folder / FILE, quadrants_as_json(self))


def per_question(divergences: Sequence[tuple[float, int]]) -> list[float]:
    """Return a value for each question whose mean is Σ sums / Σ tokens.

    A question's value is the ratio plus its own part of the ratio's first-order deviation (the
    linearised ratio estimator), so that an interval of the mean is one of the ratio.

    >>> per_question([(1.0, 1), (2.0, 5)])
    [0.6666666666666666, 0.33333333333333337]
    """
    tokens = sum(count for _, count in divergences) / len(divergences)
    ratio = sum(total for total, _ in divergences) / len(divergences) / tokens
    return [ratio + (total - ratio * count) / tokens for total, count in divergences]


def quadrants_as_json(quadrants: Quadrants) -> Row:
    """Return the content of quadrants.json: the attributes, and the means and gains that follow from them."""

    def by_decoding(estimate: Callable[[str, str], Estimate], name: str) -> Row:
        return {decoding: asdict(estimate(name, decoding)) for decoding in DECODINGS}

    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "quadrants",
        **asdict(quadrants),
        "scores": {name: by_decoding(quadrants.score, name) for name in QUADRANTS},
        "gains": {name: by_decoding(quadrants.gain, name) for name in GAINS},
        "divergence": {p: asdict(quadrants.divergence(p)) for p in quadrants.divergences},
    }


def read_quadrants(folder: Path) -> Quadrants | None:
    """Read a run folder's quadrants.json; None if there is none, or the best policy has changed since.

    Raises ConfigError: it cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        row = json.loads(path.read_bytes())
        if row["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"its schema_version is not {SCHEMA_VERSION}")
        quadrants = Quadrants(**{key: row[key] for key in row.keys() - {*_DERIVED}})
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


# ---- the table


def quadrant_table(quadrants: Quadrants) -> Table:
    """Return the scores of each decoding, with the gains at their margins, and the divergence."""
    same = (
        "" if quadrants.best != quadrants.initial else "The best instruction is the initial one. "
    )
    frozen = "" if quadrants.trained else "The weights were not trained. "
    notes = (
        f"{same}{frozen}{len(quadrants.questions):,} {quadrants.split} questions; {quadrants.samples} sampled "
        f"rollout{'s' * (quadrants.samples != 1)} of each at temperature {quadrants.temperature:g}; "
        "95 % intervals over questions, one seed."
    )
    head = [f"Held-out {quadrants.measure}", *(_HEADINGS[prompt] for prompt in PROMPTS), "gain"]
    rows: list[list[Cell]] = []
    form = Scores(quadrants.measure == EXACT_MATCH)
    for decoding, heading in (("greedy", "greedy"), ("sampled", f"avg@{quadrants.samples}")):
        rows.append([Cell(heading)])
        for weights in WEIGHTS:
            scores = [quadrants.score(f"{weights}_{prompt}", decoding) for prompt in PROMPTS]
            cells = [form.cell(score.mean, score.interval) for score in scores]
            rows.append(
                [
                    Cell(_HEADINGS[weights]),
                    *cells,
                    _gain_cell(quadrants, f"prompt_{weights}", decoding),
                ]
            )
        names = ("weights_plain", "weights_prompted", "both")
        rows.append([Cell("gain"), *(_gain_cell(quadrants, name, decoding) for name in names)])
    if quadrants.divergences:
        divergences = [quadrants.divergence(prompt) for prompt in PROMPTS]
        cells = [divergence_cell(kl.mean, kl.interval) for kl in divergences]
        rows.append([Cell("KL to initial")])
        rows.append([Cell("nats per token"), *cells, Cell("")])
    return Table([Cell(text) for text in head], rows, notes)


def _gain_cell(quadrants: Quadrants, name: str, decoding: str) -> Cell:
    gain = quadrants.gain(name, decoding)
    return Scores(quadrants.measure == EXACT_MATCH).cell(gain.mean, gain.interval, change=True)


def divergence_cell(mean: float, interval: tuple[float, float] | None) -> Cell:
    """Return a divergence in nats with its interval."""
    return Cell(f"{mean:.2g}", "{:.2g}–{:.2g}".format(*interval) if interval else "")
