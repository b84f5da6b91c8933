"""A suite's result: its summary.json, methods × seeds with scores, gains, intervals and costs; and its tables."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pandas as pd
from pydantic import BaseModel

from cotune.errors import ConfigError, CotuneError
from cotune.experiments.compare.running import SuiteCell
from cotune.experiments.compare.suite_file import Group, SuiteConfig
from cotune.experiments.evaluate.quadrants import DECODINGS, PROMPTS, QUADRANTS, per_question
from cotune.experiments.statistics import Ends, ScoreTable, focus_on, gain, interval
from cotune.run.costs import policy_rollouts
from cotune.run.run_dir import RunDir
from cotune.run.scores import EXACT_MATCH
from cotune.utils.tables import Bar, Cell, Scores, Table, count, duration, money
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
        status, problem: "unequal" if it paid more or fewer rollouts than its compute class allows; and why, in a line.
        score, plain, before: held-out reward after training under the best instruction, under the
            initial one, and before training.
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
        strata, n: held-out questions by stratum, and those that are scored (None before a run is finished).
        verdict: the outcome in a sentence.
        created: Unix time.
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
_COLUMNS = ["row", "seed", "figure", "question", "stratum", "reward"]


def summarise(suite: SuiteConfig, cells: Sequence[SuiteCell], llm: str) -> SuiteSummary:
    """Return a suite's summary over its finished runs; mark a cell as failed if its evaluation is unusable."""
    tables: list[ScoreTable] = []
    finished: list[SuiteCell] = []
    for cell in cells:
        if cell.state != "done":
            continue
        try:
            tables.append(_scores_of(cell))
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


def _scores_of(cell: SuiteCell) -> ScoreTable:
    """Read what a finished cell scored, before its first stage and after its last.

    The figures are "before" training; "score", after it under the best instruction; "plain", after it under the initial
    one; its quadrants ("trained_plain greedy") and their divergences ("KL plain").

    Raises ConfigError: the last stage was not evaluated, or on no question that the suite's focus is on.
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
        if focus_on(figures[name], cell.suite.focus).empty:
            raise ConfigError(
                f"{last.path}: no test question has a stratum that begins with {cell.suite.focus!r}, the focus"
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


def _quadrant_scores(cell: SuiteCell) -> dict[str, ScoreTable]:
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
    suite: SuiteConfig,
    cells: Sequence[SuiteCell],
    finished: Sequence[SuiteCell],
    scores: ScoreTable,
) -> SuiteMethod:
    """Return the summary of the row of some cells, from what the finished cells of all rows scored."""
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
        costs=pd.DataFrame([_cost(cell) for cell in done]).mean().to_dict(),
        finished=len(done),
        instruction=done[0].finished[-1]["best_instruction"] if done else None,
        gain=gained,
        **({} if unequal or not done else _spreads(suite, of_row)),
    )


def unequal_compute(cells: Sequence[SuiteCell]) -> str:
    """Say which finished cell paid more or fewer rollouts than its compute class allows; "" if none did."""
    for cell in cells:
        paid = _paid(cell)
        low = cell.allowance * (1 - TOLERANCE)
        high = cell.allowance * (1 + TOLERANCE)
        if not low <= paid <= high:
            return (
                f"paid {paid:,} policy rollouts; its compute class {cell.entry.compute} allows "
                f"{low:,.0f} to {high:,.0f}"
            )
    return ""


def _paid(cell: SuiteCell) -> int:
    """Return the policy rollouts of all stages, without evaluation."""
    return sum(policy_rollouts(figures["policy_rollouts"]) for figures in cell.finished)


def _cost(cell: SuiteCell) -> dict[str, float]:
    """Return what all stages of a cell spent together."""
    costs = {key: sum(figures.get(key) or 0 for figures in cell.finished) for key in _SUMS}
    costs["rollouts"] = _paid(cell)
    evaluated = sum(figures["policy_rollouts"].get("evaluate", 0) for figures in cell.finished)
    if cell.suite.quadrant_samples and (quadrants := cell.quadrants()) is not None:
        evaluated += quadrants.rollouts
        costs["generated_tokens"] += quadrants.generated_tokens
    return {**costs, "evaluation_rollouts": evaluated}


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
    """Say in one sentence what the best method of the group "ours" gained over the baseline; without any, the best."""
    compared = [(row, row.gain) for row in suite.methods if row.gain]
    if not compared:
        return "No comparison yet: too few runs are finished."
    ours = [(row, gained) for row, gained in compared if row.group == "ours"]
    best, gained = max(ours or compared, key=lambda pair: pair[1].mean)
    cell = Scores(suite.shares).cell(gained.mean, gained.interval, change=True)
    ends = f" (95 %: {cell.note})" if cell.note else ""
    clear = "" if cell.css else ", which may be none"
    return (
        f"{suite.title} over {suite.baseline_method.label}: {best.label} {cell.text}{' points' * suite.shares}{ends}"
        f"{clear}; at a budget of {suite.budget:,} policy rollouts, over {suite.varied}."
    )


# ---- its tables

Column = tuple[Cell, Callable[[SuiteMethod], Cell]]
"""The heading of a column, and each method's cell."""


def suite_tables(suite: SuiteSummary, brief: bool = False) -> dict[str, Table]:
    """Return the tables by name: "result", "quadrants" and "strata" if there are any, "costs".

    Args:
        brief: for the console, which is narrower: the result lacks the scores by seed.
    """
    tables = {"result": _result_table(suite, brief)}
    if any(method.quadrants for method in suite.methods):
        tables["quadrants"] = _quadrant_table(suite)
    if suite.stratum_names:
        columns = [_stratum_column(suite, name) for name in suite.stratum_names]
        tables["strata"] = _table(suite, suite.title, columns)
    return tables | {"costs": _cost_table(suite)}


def _result_table(suite: SuiteSummary, brief: bool) -> Table:
    n = f", n\u00a0=\u00a0{count(suite.n)}" if suite.n else ""

    def by_seed(method: SuiteMethod) -> Cell:
        score = Scores(suite.shares).score
        texts = (score(method.by_seed.get(str(seed))) for seed in suite.seeds)
        return Cell(" ".join(text.removesuffix("\u202f%") for text in texts))

    def before(method: SuiteMethod) -> Cell:
        return replace(_cell(suite, method.before), note="")

    columns: list[Column] = [(Cell("Score", f"95 % over {suite.varied}{n}"), _bars(suite))]
    if len(suite.seeds) > 1 and not brief:
        columns.append((Cell("By seed", ", ".join(map(str, suite.seeds))), by_seed))
    gain = Cell("Gain", f"over {suite.baseline_method.label}")
    columns.append((gain, lambda m: _cell(suite, m.gain, change=True)))
    if any(method.before is not None for method in suite.methods):
        columns.append((Cell("Before", "training"), before))
    plain = Cell("Plain", "initial instruction")
    compute = Cell("Compute", "rollouts paid")
    columns += [
        (plain, lambda m: _cell(suite, m.plain)),
        (compute, lambda m: Cell(m.compute, count(m.costs.get("rollouts")))),
    ]
    return _table(suite, suite.title, columns)


def _quadrant_table(suite: SuiteSummary) -> Table:
    """Return the scores of both weights under both instructions."""

    def quadrant(name: str) -> Callable[[SuiteMethod], Cell]:
        def cell(method: SuiteMethod) -> Cell:
            spreads = method.quadrants.get(name, {}).values()
            greedy, *sampled = [_cell(suite, spread) for spread in spreads] or [Cell()]
            notes = (greedy.note, *(f"{c.text} {c.note}" for c in sampled))
            return Cell(greedy.text, "\n".join(notes))

        return cell

    def divergence(method: SuiteMethod) -> Cell:
        by_prompt = [f"{prompt} {kl.mean:.2g}" for prompt, kl in method.divergence.items()]
        return Cell("", "\n".join(by_prompt)) if by_prompt else Cell()

    heads = [
        Cell(weights, f"{prompt} instruction")
        for weights in ("Untrained", "Trained")
        for prompt in ("initial", "best")
    ]
    title = f"{suite.title}, greedy, below it avg@{suite.quadrant_samples}"
    columns = list(zip(heads, map(quadrant, QUADRANTS), strict=True))
    return _table(suite, title, [*columns, (Cell("KL", "nats per token"), divergence)])


def _stratum_column(suite: SuiteSummary, name: str) -> Column:
    n = suite.strata.get(name)
    head = Cell(name, f"n\u00a0=\u00a0{count(n)}" if n else "")
    form = Scores(suite.shares)
    return head, lambda m: form.cell(m.score.by_stratum.get(name) if m.score else None)


def _cost_table(suite: SuiteSummary) -> Table:
    """Return the cost of one run of each method."""

    def cost(name: str, key: str, form: Callable[[float | None], str] = count) -> Column:
        return Cell(name), lambda method: Cell(form(method.costs.get(key)))

    columns = [
        cost("Policy rollouts", "rollouts"),
        cost("Evaluation rollouts", "evaluation_rollouts"),
        cost("Generated tokens", "generated_tokens"),
        cost("LLM calls", "llm_calls"),
        cost("Money", "money", money),
        cost("Time", "seconds", duration),
    ]
    return _table(suite, "One run, mean over seeds", columns)


def _table(suite: SuiteSummary, title: str, columns: Sequence[Column]) -> Table:
    """Return a table with a row a method under its group's heading."""
    rows: list[list[Cell]] = []
    group = ""
    for method in suite.ordered:
        if method.group != group:
            group = method.group
            heading, css = GROUPS[group]
            rows.append([Cell(heading, css=css)])
        tags = ["baseline"] * (method.name == suite.baseline)
        tags += [method.status] * (method.status != "ok")
        name = Cell(method.label, tag=", ".join(tags))
        rows.append([name, *(cell(method) for _, cell in columns)])
    return Table([Cell(title), *(head for head, _ in columns)], rows)


def _cell(suite: SuiteSummary, spread: Spread | None, change: bool = False) -> Cell:
    if spread is None:
        return Cell()
    return Scores(suite.shares).cell(spread.mean, spread.interval, change)


def _bars(suite: SuiteSummary) -> Callable[[SuiteMethod], Cell]:
    """Return what makes a method's score with a bar of its interval and seeds, all on one scale."""
    spreads = [method.score for method in suite.methods if method.score]
    numbers = [number for spread in spreads for number in (spread.mean, *(spread.interval or ()))]
    numbers += [score for method in suite.methods for score in method.by_seed.values()]
    low = min([0.0, *numbers])
    high = max(numbers, default=1.0)
    high = max(1.0, high) if suite.shares else max(high, low + 1e-9)

    def place(value: float) -> float:
        return round((value - low) / (high - low) * 100, 1)

    def cell(method: SuiteMethod) -> Cell:
        if method.score is None:
            return Cell()
        baseline = suite.baseline_method.score
        bar = Bar(
            place(method.score.mean),
            [place(end) for end in method.score.interval or ()],
            [place(score) for score in method.by_seed.values()],
            None if baseline is None else place(baseline.mean),
            GROUPS[method.group][1],
        )
        return replace(_cell(suite, method.score), bar=bar)

    return cell
