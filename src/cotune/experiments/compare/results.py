"""A suite's summary.json: methods × seeds with scores, gains, intervals and costs, from its runs."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pandas as pd
from pydantic import BaseModel

from cotune.errors import ConfigError, CotuneError
from cotune.experiments.compare.running import Cell
from cotune.experiments.compare.suite_file import Group, SuiteConfig
from cotune.experiments.evaluate.quadrants import DECODINGS, PROMPTS, QUADRANTS, per_question
from cotune.experiments.statistics import Ends, ScoreTable, focus_on, gain, interval
from cotune.run.costs import policy_rollouts
from cotune.run.run_dir import RunDir
from cotune.run.scores import EXACT_MATCH
from cotune.utils.tables import Scores
from cotune.utils.text import one_line, slug

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
        status: "unequal": it paid more or fewer rollouts than its compute class allows.
        problem: why its status is not "ok", in a line.
        score, plain, before: held-out reward after training under the best instruction, under the
            initial one, and before training.
        by_seed: its score by seed.
        gain: score less the baseline's.
        quadrants: by quadrant ("trained_plain") and decoding ("sampled"); {} if not all seeds have them.
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
    """summary.json of a suite; caption, baseline, budget, focus and quadrant_samples are the suite file's.

    Attributes:
        measure: what the scores measure: "exact match" or "mean reward".
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


_SUMS = ("generated_tokens", "llm_calls", "money", "seconds")
TOLERANCE = 0.05
"""The share by which a row's rollouts may differ from its compute class."""
_COMPARED = 4  # the verdict names the first ones, so that it stays a sentence
_COLUMNS = ["row", "seed", "figure", "question", "stratum", "reward"]


def summarise(suite: SuiteConfig, cells: Sequence[Cell], llm: str) -> SuiteSummary:
    """Return a suite's summary, over the runs that are finished.

    Reads the run folders of finished stages. Marks a cell as failed if its evaluation is unusable.

    Args:
        llm: the LLMs that propose.
    """
    tables: list[ScoreTable] = []
    sizes: dict[str, int] = {}
    finished: list[Cell] = []
    for cell in cells:
        if cell.state != "done":
            continue
        try:
            tables.append(_scores_of(cell, sizes))
            finished.append(cell)
        except (CotuneError, OSError, KeyError, TypeError) as error:
            cell.fail(error)
    scores: ScoreTable = pd.concat(tables) if tables else pd.DataFrame(columns=_COLUMNS)
    measures = {str(cell.finished[-1].get("measure") or "") for cell in finished} - {""}
    # The questions of any seed: all have as many.
    tested = scores[scores["figure"] == "score"].groupby(["row", "seed"], sort=False)
    questions = next((of_cell for _, of_cell in tested), scores)
    strata = Counter(questions["stratum"])
    methods = [[c for c in cells if c.entry is entry] for entry in suite.methods]
    first = cells[0].planned[0]
    summary = SuiteSummary(
        name=suite.name,
        caption=suite.caption,
        created=round(time.time(), 3),
        environment=first.environment.kind,
        policy=first.policy.path,
        llm=llm,
        seeds=list(suite.seeds),
        budget=suite.budget,
        baseline=slug(suite.baseline),
        focus=suite.focus,
        quadrant_samples=suite.quadrant_samples,
        measure=measures.pop() if len(measures) == 1 else "mean reward",
        strata={name: strata[name] for name in sorted(strata) if name},
        n=len(focus_on(questions, suite.focus)) or None,
        methods=[_method(suite, of_row, finished, scores) for of_row in methods],
    )
    return summary.model_copy(update={"verdict": _verdict(summary)})


def _scores_of(cell: Cell, sizes: dict[str, int]) -> ScoreTable:
    """Read what a finished cell scored, before its first stage and after its last.

    The figures are "before" training; "score", after it under the best instruction; "plain", after it under the initial
    one; its quadrants ("trained_plain greedy") and their divergences ("KL plain").

    Args:
        sizes: by row, the number of questions that count; a row's first cell sets its own.

    Raises:
        ConfigError: the last stage was not evaluated, or on other questions than at other seeds.
    """
    first, last = (RunDir.open(cell.folder / cell.stages[index]) for index in (0, -1))
    figures: dict[str, ScoreTable] = {}
    for name, run, when in (
        ("before", first, "before"),
        ("score", last, "after"),
        ("plain", last, "plain"),
    ):
        rows = run.read_evaluation(when)
        if not rows:
            continue
        tasks = [row["task"] for row in rows]
        figures[name] = pd.DataFrame(
            {
                "question": [task["id"] for task in tasks],
                "stratum": [task["stratum"] for task in tasks],
                "reward": [float(row["reward"]) for row in rows],
            }
        )
        if name != "plain":
            scored = len(focus_on(figures[name], cell.suite.focus))
            expected = sizes.setdefault(cell.entry.key, scored)
            if not scored:
                raise ConfigError(
                    f"{last.path}: no test question has a stratum that begins with {cell.suite.focus!r}, the focus"
                )
            if scored != expected:
                raise ConfigError(
                    f"{last.path}: was tested on {scored} questions to be scored; expected {expected}, the same for "
                    "each seed"
                )
    if "score" not in figures:
        raise ConfigError(
            f"{last.path}: was not evaluated on test questions at its end; remove the folder, and "
            "run it again"
        )
    figures |= _quadrant_scores(cell)
    if cell.takes_instruction(len(cell.stages) - 1):
        # That was not evaluated under the suite's own instruction, but for its quadrants.
        figures.pop("plain", None)
        if "trained_plain greedy" in figures:
            figures["plain"] = figures["trained_plain greedy"]
    else:
        # Without a "plain" evaluation, the best instruction is the run's initial one.
        figures.setdefault("plain", figures["score"])
    of_cell: ScoreTable = pd.concat(figures, names=["figure", "place"]).reset_index()
    return of_cell.assign(row=cell.entry.key, seed=str(cell.seed))[_COLUMNS]


def _quadrant_scores(cell: Cell) -> dict[str, ScoreTable]:
    quadrants = cell.quadrants() if cell.suite.quadrant_samples else None
    if quadrants is None:
        return {}
    questions: ScoreTable = pd.DataFrame(
        {"question": quadrants.questions, "stratum": quadrants.strata}
    )
    in_focus = questions["stratum"].str.startswith(cell.suite.focus or "")
    figures = {
        f"{name} {decoding}": questions.assign(reward=rewards)[in_focus]
        for name, by_decoding in quadrants.rewards.items()
        for decoding, rewards in by_decoding.items()
    }
    for prompt, divergences in quadrants.divergences.items():
        scored = [pair for pair, keep in zip(divergences, in_focus, strict=True) if keep]
        figures[f"KL {prompt}"] = questions[in_focus].assign(reward=per_question(scored))
    return figures


def _method(
    suite: SuiteConfig, cells: Sequence[Cell], finished: Sequence[Cell], scores: ScoreTable
) -> SuiteMethod:
    """Return the summary of one row: what it is, what it cost, what it scored.

    Args:
        cells: those of the row.
        finished: the finished ones of all rows.
        scores: what these scored.
    """
    entry = cells[0].entry
    done = [cell for cell in cells if cell in finished]
    unequal = unequal_compute(done)
    without = [f"seed {c.seed}: {c.standing}" for c in cells if c not in finished]
    status = "ok"
    if any(cell.problem for cell in cells):
        status = "failed"
    elif unequal:
        status = "unequal"
    elif without:
        status = "unfinished"
    of_row = scores[scores["row"] == entry.key]
    baseline = slug(suite.baseline)
    compared = [cell for cell in finished if cell.entry.key == baseline != entry.key]
    gained = None
    if not unequal and compared and not unequal_compute(compared):
        gained = _gain(suite, of_row, scores[scores["row"] == baseline])
    return SuiteMethod(
        name=entry.key,
        label=cells[0].label,
        group=cells[0].method.group,
        compute=entry.compute,
        status=status,
        problem="; ".join(filter(None, [*without, unequal])),
        runs={str(cell.seed): folders for cell in cells if (folders := cell.run_folders())},
        costs=_means([_cost(cell) for cell in done]),
        rollouts_by_purpose=_means([_purposes(cell) for cell in done]),
        finished=len(done),
        instruction=done[0].finished[-1]["best_instruction"] if done else None,
        gain=gained,
        **({} if unequal or not done else _spreads(suite, of_row)),
    )


def unequal_compute(cells: Sequence[Cell]) -> str:
    """Say which finished cell paid more or fewer rollouts than its compute class allows; "" if none did."""
    for cell in cells:
        paid = policy_rollouts(_purposes(cell))
        low = cell.allowance * (1 - TOLERANCE)
        high = cell.allowance * (1 + TOLERANCE)
        if not low <= paid <= high:
            return (
                f"paid {paid:,} policy rollouts; its compute class {cell.entry.compute} allows "
                f"{low:,.0f} to {high:,.0f}"
            )
    return ""


def _purposes(cell: Cell) -> Counter[str]:
    """Return the policy rollouts of all stages by purpose, without evaluation."""
    purposes = Counter[str]()
    for figures in cell.finished:
        purposes.update(figures["policy_rollouts"])
    del purposes["evaluate"]
    return purposes


def _cost(cell: Cell) -> dict[str, float]:
    """Return what all stages of a cell spent together."""
    costs = {key: sum(figures.get(key) or 0 for figures in cell.finished) for key in _SUMS}
    costs["rollouts"] = policy_rollouts(_purposes(cell))
    evaluated = sum(figures["policy_rollouts"].get("evaluate", 0) for figures in cell.finished)
    if cell.suite.quadrant_samples and (quadrants := cell.quadrants()) is not None:
        evaluated += quadrants.rollouts
        costs["generated_tokens"] += quadrants.generated_tokens
    return {**costs, "evaluation_rollouts": evaluated}


def _means(amounts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return pd.DataFrame(amounts).fillna(0).mean().to_dict()


def _spreads(suite: SuiteConfig, scores: ScoreTable) -> dict[str, Any]:
    """Return a row's held-out figures over its finished seeds; those that a seed lacks are left out."""
    spreads: dict[str, Spread] = {}
    seeds = scores["seed"].nunique()
    for name, figure in scores.groupby("figure", sort=False):
        if figure["seed"].nunique() < seeds:
            continue
        scored = focus_on(figure, suite.focus)
        # No page shows how far a divergence varies, and it is no share.
        ends = None if str(name).startswith("KL ") else interval(scored)
        by_stratum = figure[figure["stratum"] != ""].groupby("stratum")["reward"].mean()
        mean = float(scored["reward"].mean())
        spreads[str(name)] = Spread(mean=mean, interval=ends, by_stratum=by_stratum.to_dict())
    score = focus_on(scores[scores["figure"] == "score"], suite.focus)
    return {
        **{name: spreads[name] for name in ("score", "plain", "before") if name in spreads},
        "by_seed": score.groupby("seed", sort=False)["reward"].mean().to_dict(),
        "quadrants": {
            name: {decoding: spreads[f"{name} {decoding}"] for decoding in DECODINGS}
            for name in QUADRANTS
            if f"{name} {DECODINGS[0]}" in spreads
        },
        "divergence": {
            prompt: spreads[f"KL {prompt}"] for prompt in PROMPTS if f"KL {prompt}" in spreads
        },
    }


def _gain(suite: SuiteConfig, method: ScoreTable, baseline: ScoreTable) -> Spread | None:
    """Return the gain over the baseline on the seeds that both have finished."""
    seeds = set(method["seed"]) & set(baseline["seed"])
    if not seeds:
        return None
    pair = (
        focus_on(each[(each["figure"] == "score") & each["seed"].isin(seeds)], suite.focus)
        for each in (method, baseline)
    )
    difference = gain(*pair)
    return Spread(mean=difference[0], interval=difference[1]) if difference else None


def _verdict(suite: SuiteSummary) -> str:
    """Say in one sentence what the methods of the group "ours" gained over the baseline; without any, the best."""
    baseline = suite.baseline_method
    compared = [(row, row.gain) for row in suite.methods if row.gain]
    if baseline.score is None or not compared:
        return "No comparison yet: too few runs are finished."
    joint = [(row, gained) for row, gained in compared if row.group == "ours"]
    leading = joint[:_COMPARED] or [max(compared, key=lambda pair: pair[1].mean)]
    form = Scores(suite.shares)
    clauses: list[str] = []
    for row, gained in leading:
        cell = form.cell(gained.mean, gained.interval, change=True)
        ends = f" (95 %: {cell.note})" if cell.note else ""
        clear = "" if cell.css else ", which may be none"
        clauses.append(f"{row.label} {cell.text}{' points' * suite.shares}{ends}{clear}")
    seeds = {len(row.by_seed.keys() & baseline.by_seed.keys()) for row, _ in compared}
    over = " to ".join(map(str, sorted({min(seeds), max(seeds)})))
    over = "one seed, which says nothing of others" if over == "1" else f"{over} seeds"
    return (
        f"{suite.title} over {baseline.label}: {'; '.join(clauses)}; at a budget of {suite.budget:,} policy "
        f"rollouts, over {over}."
    )
