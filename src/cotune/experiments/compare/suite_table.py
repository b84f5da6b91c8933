"""A suite's tables, for the console and for its page: result, quadrants, strata and cost."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from cotune.experiments.compare.results import GROUPS, Spread, SuiteMethod, SuiteSummary
from cotune.experiments.evaluate.quadrants import QUADRANTS
from cotune.run.costs import PURPOSES
from cotune.utils.tables import Bar, Cell, Scores, Table, count, duration, money

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

    def purpose(name: str) -> Column:
        def cell(method: SuiteMethod) -> Cell:
            absent = 0 if method.costs else None
            return Cell(count(method.rollouts_by_purpose.get(name, absent)))

        return Cell(name), cell

    def cost(name: str, key: str, form: Callable[[float | None], str] = count) -> Column:
        return Cell(name), lambda method: Cell(form(method.costs.get(key)))

    paid_for = {name for m in suite.methods for name, paid in m.rollouts_by_purpose.items() if paid}
    columns = [
        cost("Policy rollouts", "rollouts"),
        *(purpose(name) for name in PURPOSES if name in paid_for),
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
