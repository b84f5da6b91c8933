"""A suite's summary.json in memory: methods × seeds with intervals and costs."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel

from cotune.experiments.compare.methods import Group
from cotune.experiments.statistics import Ends
from cotune.run.scores import EXACT_MATCH
from cotune.utils.text import one_line

GROUPS: Mapping[Group, tuple[str, str]] = {
    "trained": ("Trained", "s0"),
    "prompt": ("Prompt only", "s4"),
    "staged": ("Staged", "s3"),
    "ours": ("Ours", "s1"),
}
"""The groups of methods in the order of the tables: heading, and the class of their colour on the page."""


class Spread(BaseModel, frozen=True):
    """A mean with its 95 % interval, None if nothing is known of it, and the mean of each stratum."""

    mean: float
    interval: Ends | None
    by_stratum: dict[str, float] = {}


class SuiteMethod(BaseModel, frozen=True):
    """A method of a suite; its numbers are means over its finished seeds, None if unknown.

    Attributes:
        name, label: its key in the suite file, and its name in tables.
        group: one of `GROUPS`.
        compute: its compute class: "1x", "2x".
        status: "unequal": it paid more or fewer rollouts than its compute class allows.
        problem: why its status is not "ok", in a line.
        score, plain, before: held-out reward after training under the best instruction, under the
            initial one, and before training.
        by_seed: its score by seed.
        gain: score less the baseline's.
        quadrants: by quadrant ("trained_plain") and decoding ("sampled"), see `Quadrants`; {} if not
            all seeds have them.
        divergence: KL(trained ‖ initial) per token by prompt ("plain", "prompted"), likewise.
        costs: "rollouts" of the policy that it paid for (training, verification and evolution),
            "evaluation_rollouts", which do not count as compute, "generated_tokens", "llm_calls",
            "money" in US dollars, "seconds" of wall time; {} before a seed is finished.
        finished: number of seeds that the costs are means over.
        instruction: the best of the first seed.
        runs: by seed the run folders of its stages in order, relative to the suite's folder.
    """

    name: str
    label: str
    group: Group
    compute: str
    status: Literal["ok", "failed", "unequal", "unfinished"]
    problem: str
    score: Spread | None = None
    plain: Spread | None = None
    before: Spread | None = None
    by_seed: dict[str, float] = {}
    gain: Spread | None = None
    quadrants: dict[str, dict[str, Spread]] = {}
    divergence: dict[str, Spread] = {}
    costs: dict[str, float] = {}
    rollouts_by_purpose: dict[str, float] = {}
    finished: int
    instruction: str | None = None
    runs: dict[str, list[str]]

    @property
    def complaint(self) -> str:
        """What is wrong, in one line; "" if nothing is."""
        status = {"ok": "", "unequal": "unequal compute"}.get(self.status, self.status)
        return one_line(f"{self.label} ({status}): {self.problem}") if status else ""


class SuiteSummary(BaseModel, frozen=True):
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
    def title(self) -> str:
        """The title of its tables: the measure, and the questions if `focus` leaves some out."""
        return f"Held-out {self.measure}" + (f" on “{self.focus}…” questions" if self.focus else "")

    @property
    def varied(self) -> str:
        """What intervals are over: what was varied, and no more."""
        several = any(method.finished > 1 for method in self.methods)
        return "seeds and questions" if several else "questions, one seed"

    @property
    def baseline_method(self) -> SuiteMethod:
        return next(method for method in self.methods if method.name == self.baseline)

    @property
    def stratum_names(self) -> list[str]:
        """The strata of the questions; [] if there is just one."""
        return list(self.strata) if len(self.strata) > 1 else []

    @property
    def ordered(self) -> list[SuiteMethod]:
        """The methods in the order of the tables."""
        return sorted(self.methods, key=lambda method: list(GROUPS).index(method.group))
