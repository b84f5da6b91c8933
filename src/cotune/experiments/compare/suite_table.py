"""A suite's tables, for the console and for its page: result, quadrants, strata and cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cotune.experiments.compare.suite_summary import Spread, SuiteMethod, SuiteSummary
from cotune.experiments.evaluate.quadrants import QUADRANTS
from cotune.utils.tables import Bar, Cell, Scores, Table, count, duration, money
from cotune.utils.text import one_line

STYLES: Mapping[str, str] = {"trained": "s0", "prompt": "s4", "staged": "s3", "ours": "s1"}
"""The class of each group's colour on the page."""
STRATA_IN_RESULT = 4
"""Of more strata the scores have a table of their own."""
Column = tuple[Cell, Callable[[SuiteMethod], Cell]]
"""The heading of a column, and each method's cell."""


def console_tables(suite: SuiteSummary) -> list[Table]:
    """Return the tables that end a suite on the console; narrower than the page's."""
    tables = (
        result_table(suite, brief=True), quadrant_table(suite),
        strata_table(suite), cost_table(suite),
    )  # fmt: skip
    return [table for table in tables if table is not None]


def result_table(suite: SuiteSummary, brief: bool = False) -> Table:
    """Return each method's scores and what it paid; `brief` leaves out seeds and strata."""
    scores = Scores(suite.shares)
    baseline, seeds = suite.baseline_method, [str(seed) for seed in suite.seeds]

    def chance(method: SuiteMethod) -> Cell:
        value = method.probability_of_improvement
        return Cell() if value is None else Cell(f"{value:.2f}")

    def before(method: SuiteMethod) -> Cell:
        return scores.cell(method.before.mean if method.before else None)

    n = f", n\u00a0=\u00a0{count(suite.n)}" if suite.n else ""
    columns: list[Column] = [(Cell("Score", f"95 % interval{n}"), _bars(suite))]
    if len(seeds) > 1 and not brief:
        columns.append((
            Cell("By seed", ", ".join(seeds)),
            lambda m: Cell(" ".join(scores.score(m.by_seed.get(s)).removesuffix("\u202f%") for s in seeds)),
        ))  # fmt: skip
    if not brief and strata_table(suite) is None:
        columns += _stratum_columns(suite, scores)
    columns.append((Cell("Gain", f"over {baseline.label}"), lambda m: _cell(suite, m.gain, True)))
    columns.append((Cell("P(improvement)"), chance))
    if any(method.before is not None for method in suite.methods):
        columns.append((Cell("Before", "training"), before))
    columns += [
        (Cell("Plain", "initial instruction"), lambda m: _cell(suite, m.plain)),
        (
            Cell("Compute", "rollouts paid"),
            lambda m: Cell(m.compute, count(m.costs.get("rollouts"))),
        ),
    ]
    return _table(suite, f"Held-out {suite.what}", columns)


def quadrant_table(suite: SuiteSummary) -> Table | None:
    """Return the scores of both weights under both instructions; None if no method has them."""
    if not any(method.quadrants for method in suite.methods):
        return None

    def quadrant(name: str) -> Callable[[SuiteMethod], Cell]:
        def cell(method: SuiteMethod) -> Cell:
            spreads = method.quadrants.get(name, {}).values()
            greedy, *sampled = [_cell(suite, spread) for spread in spreads] or [Cell()]
            notes = (greedy.note, *(f"{c.text} {c.note}" for c in sampled))
            return Cell(greedy.text, "\n".join(notes))

        return cell

    def divergence(method: SuiteMethod) -> Cell:
        both = [f"{prompt} {kl.mean:.2g}" for prompt, kl in method.divergence.items()]
        return Cell("", "\n".join(both)) if both else Cell()

    heads = [
        Cell(weights, f"{prompt} instruction")
        for weights in ("Untrained", "Trained")
        for prompt in ("initial", "best")
    ]
    title = f"Held-out {suite.what}, greedy, below it avg@{suite.quadrant_samples}"
    columns = list(zip(heads, map(quadrant, QUADRANTS), strict=True))
    return _table(suite, title, [*columns, (Cell("KL", "nats per token"), divergence)])


def strata_table(suite: SuiteSummary) -> Table | None:
    """Return the scores by stratum; None if the page's result table has room for them."""
    if len(suite.stratum_names) <= STRATA_IN_RESULT:
        return None
    return _table(suite, f"Held-out {suite.what}", _stratum_columns(suite, Scores(suite.shares)))


def cost_table(suite: SuiteSummary) -> Table:
    """Return the cost of one run of each method."""

    def purpose(name: str) -> Column:
        def cell(method: SuiteMethod) -> Cell:
            absent = 0 if method.costs else None
            return Cell(count(method.rollouts_by_purpose.get(name, absent)))

        return Cell(name), cell

    def cost(name: str, key: str, form: Callable[[float | None], str] = count) -> Column:
        return Cell(name), lambda method: Cell(form(method.costs.get(key)))

    columns = [
        cost("Policy rollouts", "rollouts"),
        *map(purpose, suite.purposes),
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
    for group, heading, methods in suite.grouped:
        rows.append([Cell(heading, css=STYLES[group])])
        for method in methods:
            tags = ["baseline"] * (method.name == suite.baseline)
            tags += [method.trouble] * bool(method.trouble)
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
    numbers = [number for spread in spreads for number in (spread.mean, *spread.interval)]
    numbers += [score for method in suite.methods for score in method.by_seed.values()]
    low, high = min([0.0, *numbers]), max(numbers, default=1.0)
    high = max(1.0, high) if suite.shares else max(high, low + 1e-9)

    def place(value: float) -> float:
        return round((value - low) / (high - low) * 100, 1)

    def cell(method: SuiteMethod) -> Cell:
        if method.score is None:
            return Cell()
        baseline = suite.baseline_method.score
        bar = Bar(
            place(method.score.mean),
            [place(end) for end in method.score.interval],
            [place(score) for score in method.by_seed.values()],
            None if baseline is None else place(baseline.mean),
            STYLES[method.group],
        )
        return replace(_cell(suite, method.score), bar=bar)

    return cell


def _stratum_columns(suite: SuiteSummary, scores: Scores) -> list[Column]:
    def column(name: str) -> Column:
        n = suite.strata.get(name)
        head = Cell(name, f"n\u00a0=\u00a0{count(n)}" if n else "")
        return head, lambda m: scores.cell(m.score.by_stratum.get(name) if m.score else None)

    return [column(name) for name in suite.stratum_names]


def best_instruction(suite: SuiteSummary) -> str:
    """Return the instruction of the method with the best score that found one, as a line; "" if none did."""
    scored = [
        (method.score.mean, method)
        for method in suite.methods
        if method.score and method.plain and method.plain.mean != method.score.mean
    ]
    if not scored:
        return ""
    _, best = max(scored, key=lambda pair: pair[0])
    return one_line(f"best instruction ({best.label}): {best.instruction}")
