"""A suite's summary.json in memory: methods × seeds with intervals and costs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from cotune.errors import ConfigError
from cotune.experiments.compare.methods import Group
from cotune.run.costs import PURPOSES
from cotune.run.run_dir import RunDir, read_summary
from cotune.run.scores import EXACT_MATCH
from cotune.utils.text import one_line

GROUPS: Mapping[Group, str] = {
    "trained": "Trained",
    "prompt": "Prompt only",
    "staged": "Staged",
    "ours": "Ours",
}
"""The groups of methods in the order of the tables, with their headings."""

Status = Literal["ok", "failed", "unequal", "unfinished"]

Ends = tuple[float, float]


class _Read(BaseModel):
    """A part of the file; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True)


class Spread(_Read):
    """A mean with its 95 % interval over seeds and questions, and the mean of each stratum."""

    mean: float
    interval: Ends
    by_stratum: dict[str, float] = {}


class SuiteMethod(_Read):
    """A method of a suite; its numbers are means over its finished seeds, None if unknown.

    Attributes:
        name, label: its key in the suite file, and its name in tables.
        group: one of `GROUPS`.
        compute: its compute class: "1x", "2x".
        problem: why its status is not "ok".
        score, plain, before: held-out reward after training under the best instruction, under the
            initial one, and before training.
        by_seed: its score by seed.
        gain: score less the baseline's.
        probability_of_improvement: chance that a run of it beats a run of the baseline.
        quadrants: by quadrant ("trained_plain") and decoding ("sampled"), see `Quadrants`; {} if not
            all seeds have them.
        divergence: KL(trained ‖ initial) per token by prompt ("plain", "prompted"), likewise.
        costs: "rollouts" of the policy that it paid for (training, verification and evolution),
            "evaluation_rollouts", which do not count as compute, "generated_tokens", "llm_calls",
            "money" in US dollars, "seconds" of wall time; {} before a seed is finished.
        finished: number of seeds that the costs are means over.
        missing: by seed without a result, the reason: "begun, stage train", "failed: …", "not begun".
        instruction: the best of the first seed.
        runs: by seed the run folders of its stages in order, relative to the suite's folder.
    """

    name: str
    label: str
    group: Group
    compute: str
    status: Status
    problem: str
    score: Spread | None = None
    plain: Spread | None = None
    before: Spread | None = None
    by_seed: dict[str, float] = {}
    gain: Spread | None = None
    probability_of_improvement: float | None = None
    quadrants: dict[str, dict[str, Spread]] = {}
    divergence: dict[str, Spread] = {}
    costs: dict[str, float] = {}
    rollouts_by_purpose: dict[str, float] = {}
    finished: int
    missing: dict[str, str]
    instruction: str | None = None
    runs: dict[str, list[str]]

    @property
    def trouble(self) -> str:
        """The problem in a word or two; "" if there is none."""
        return {"ok": "", "unequal": "unequal compute"}.get(self.status, self.status)

    def complaint(self) -> str:
        """Return what went wrong, in one line; "" if nothing did, or a seed is just missing."""
        if not self.trouble or (self.missing and self.status != "unequal"):
            return ""
        return one_line(f"{self.label} ({self.trouble}): {self.problem}")


class SuiteSummary(_Read):
    """summary.json of a suite.

    Attributes:
        caption: what the figures are evidence for.
        baseline: name of the method that gains are measured against.
        budget: policy rollouts that a method of compute class 1x may pay.
        measure: what the scores measure: "exact match" or "mean reward".
        focus: the scores are over questions whose stratum begins with this; None for all.
        strata: number of held-out questions by stratum.
        n: number of held-out questions that are scored; None before the first run is finished.
        llm: the LLMs that wrote proposals.
        verdict: the outcome in a sentence.
        created: Unix time.
        methods: in the order of the suite file.
    """

    schema_version: int = 1
    kind: str = "suite"
    name: str
    caption: str
    baseline: str
    seeds: list[int]
    budget: int
    measure: str
    focus: str | None
    quadrant_samples: int
    strata: dict[str, int]
    n: int | None
    environment: str
    policy: str
    llm: str
    verdict: str = ""
    created: float
    methods: list[SuiteMethod]

    @property
    def shares(self) -> bool:
        """True if scores are shares of 1."""
        return self.measure == EXACT_MATCH

    @property
    def what(self) -> str:
        """The measure, and the questions if `focus` leaves some out."""
        return f"{self.measure} on “{self.focus}…” questions" if self.focus else self.measure

    @property
    def baseline_method(self) -> SuiteMethod:
        return next(method for method in self.methods if method.name == self.baseline)

    @property
    def stratum_names(self) -> list[str]:
        """Strata of the questions, then those that only methods name; [] if there is just one."""
        others = (name for m in self.methods if m.score for name in m.score.by_stratum)
        names = list(dict.fromkeys([*self.strata, *others]))
        return names if len(names) > 1 else []

    @property
    def missing(self) -> str:
        """One sentence: the methods and seeds without a result, and why; "" if there are none."""
        lacking = [method for method in self.methods if method.missing]
        if not lacking:
            return ""
        runs, count = len(self.methods) * len(self.seeds), sum(len(m.missing) for m in lacking)
        told = "; ".join(
            f"{method.label} at "
            + ", ".join(f"seed {seed} ({why})" for seed, why in method.missing.items())
            for method in lacking
        )
        return one_line(f"{count} of {runs} runs {'is' if count == 1 else 'are'} missing: {told}.")

    @property
    def grouped(self) -> list[tuple[str, str, list[SuiteMethod]]]:
        """(group, heading, its methods) in the order of the tables, without empty groups."""
        groups = [
            (group, heading, [method for method in self.methods if method.group == group])
            for group, heading in GROUPS.items()
        ]
        return [(group, heading, methods) for group, heading, methods in groups if methods]

    @property
    def ordered(self) -> list[SuiteMethod]:
        """The methods in the order of the tables."""
        return [method for _, _, methods in self.grouped for method in methods]

    @property
    def purposes(self) -> list[str]:
        """The purposes that rollouts were paid for, evaluation left out."""
        return [p for p in PURPOSES if any(m.rollouts_by_purpose.get(p) for m in self.methods)]


def is_suite_folder(folder: Path) -> bool:
    """Return whether a folder is a suite's, finished or not."""
    return not RunDir.is_run(folder) and (read_summary(folder) or {}).get("kind") == "suite"


def read_suite(folder: Path) -> SuiteSummary:
    """Read summary.json of a suite's folder.

    Raises:
        ConfigError: there is none, it cannot be read, or it is not a suite's.
    """
    summary = read_summary(folder)
    if summary is None or summary.get("kind") != "suite":
        raise ConfigError(
            f"{folder} holds no suite's summary.json; give the output folder of cotune compare (for a run: "
            "cotune report, or cotune evaluate --json)"
        )
    try:
        return SuiteSummary.model_validate(summary)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ConfigError(
            f"{folder / 'summary.json'}: {place} is not a suite's ({first['msg']}); write it again with "
            "cotune compare"
        ) from error
