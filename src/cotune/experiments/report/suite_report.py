"""A suite's report: methods × seeds on one page, in one HTML file without scripts."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cotune.experiments.compare.suite_summary import SuiteMethod, SuiteSummary, read_suite
from cotune.experiments.evaluate.quadrants import QUADRANTS
from cotune.experiments.report.charts import PANEL, Chart, Series, line_chart
from cotune.experiments.report.pages import (
    NONE,
    Bar,
    Cell,
    Scores,
    count,
    duration,
    moment,
    money,
    write_page,
)
from cotune.experiments.report.suite_curves import MEASURES, MethodCurves, folder_of, read_curves

_STRATA_IN_TABLE = 4
_STYLES = {
    "trained": "s0",
    "prompt": "s4",
    "staged": "s3",
    "ours": "s1",
}
Column = tuple[Cell, Callable[[SuiteMethod], Cell]]
"""The heading of a column, and each method's cell."""


def write_suite_report(folder: Path | str, summary: Mapping[str, Any] | None = None) -> Path:
    """Write report.html into a suite's folder, from what is finished so far.

    The page names runs that are missing or broken.

    Args:
        folder: the suite's folder.
        summary: its summary; None reads it.

    Returns:
        The path of report.html.

    Raises:
        ConfigError: `folder` holds no suite's summary.json, or a broken one.
    """
    folder = Path(folder)
    if summary is None:
        summary = read_suite(folder)
    suite = SuiteSummary.of(summary, folder / "summary.json")
    read = {method.name: read_curves(folder, method) for method in suite.methods}
    scores = Scores(suite.shares)
    measures = {each.measure for each in read.values() if each.lines}
    content = {
        "title": suite.name,
        "suite": suite,
        "facts": _facts(suite),
        "verdict": suite.verdict,
        "troubled": [method for method in suite.methods if method.trouble],
        "result": _table(suite, f"Held-out {suite.what}", _result_columns(suite, scores)),
        "quadrants": _quadrants(suite, scores),
        "strata": _strata_apart(suite, scores),
        "costs": _table(suite, "One run, mean over seeds", _cost_columns(suite)),
        "panels": _panels(suite, read),
        "measure": " or ".join(MEASURES[name] for name in MEASURES if name in measures),
        "without_curve": [m.label for m in suite.methods if not read[m.name].lines],
        "instructions": _instructions(suite, read),
        "hinted": [(_heading(method), method) for method in suite.methods if method.hints],
        "scores": scores,
        "links": _links(folder, suite),
        "missing": [line for each in read.values() for line in each.missing],
    }
    return write_page(folder, "suite.html.j2", content)


def _facts(suite: SuiteSummary) -> list[tuple[str, str]]:
    """Return what the header says was run, and what all finished runs cost together."""

    def total(name: str) -> float | None:
        # A method's numbers are means over its finished seeds.
        means = [(getattr(method, name), method.finished) for method in suite.methods]
        known = [mean * seeds for mean, seeds in means if mean is not None]
        return sum(known) if known else None

    runs = len(suite.methods) * len(suite.seeds)
    facts = [
        ("World", suite.environment),
        ("Policy", suite.policy),
        ("Proposer", suite.llm),
        ("Seeds", ", ".join(map(str, suite.seeds))),
        ("Budget of a run", f"{count(suite.budget)} policy rollouts"),
        ("Held-out questions", count(suite.n) if suite.n else ""),
        ("When", moment(suite.created)),
        ("Runs", f"{sum(method.finished for method in suite.methods)} of {runs}"),
        ("Policy rollouts", count(total("rollouts"))),
        ("Evaluation rollouts", count(total("evaluation_rollouts"))),
        ("Money", money(total("money"))),
        ("Time, summed over runs", duration(total("seconds"))),
    ]
    return [(name, value) for name, value in facts if value not in ("", NONE)]


def _table(suite: SuiteSummary, corner: str, columns: Sequence[Column]) -> dict[str, Any]:
    """Return a table with a row a method under its group's heading."""
    rows: list[list[Cell]] = []
    for group, heading, methods in suite.grouped:
        rows.append([Cell(heading, css=_STYLES[group])])
        rows += [[_row_name(suite, m), *(cell(m) for _, cell in columns)] for m in methods]
    return {"head": [Cell(corner), *(head for head, _ in columns)], "rows": rows}


def _row_name(suite: SuiteSummary, method: SuiteMethod) -> Cell:
    tags = ["baseline"] * (method.name == suite.baseline) + [method.trouble] * bool(method.trouble)
    return Cell(method.label, tag=", ".join(tags))


def _result_columns(suite: SuiteSummary, scores: Scores) -> list[Column]:
    baseline, seeds = suite.baseline_method, [str(seed) for seed in suite.seeds]

    def gain(method: SuiteMethod) -> Cell:
        if method.name == suite.baseline:
            return Cell()
        return scores.cell(method.gain, method.gain_interval, change=True)

    def chance(method: SuiteMethod) -> Cell:
        value = method.probability_of_improvement
        return Cell() if value is None or method.name == suite.baseline else Cell(f"{value:.2f}")

    n = f", n\u00a0=\u00a0{count(suite.n)}" if suite.n else ""
    columns: list[Column] = [(Cell("Score", f"95 % interval{n}"), _bars(suite, scores))]
    if len(seeds) > 1:
        columns.append((
            Cell("By seed", ", ".join(seeds)),
            lambda m: Cell(" ".join(scores.score(m.by_seed.get(s)).removesuffix("\u202f%") for s in seeds)),
        ))  # fmt: skip
    if len(suite.stratum_names) <= _STRATA_IN_TABLE:
        columns += _stratum_columns(suite, scores)
    columns.append((Cell("Gain", f"over {baseline.label}"), gain))
    columns.append((Cell("P(improvement)"), chance))
    if any(method.before is not None for method in suite.methods):
        columns.append((Cell("Before", "training"), lambda m: scores.cell(m.before)))
    return [
        *columns,
        (Cell("Plain", "initial instruction"), lambda m: scores.cell(m.plain, m.plain_interval)),
        (Cell("Compute", "rollouts paid"), lambda m: Cell(m.compute, count(m.rollouts))),
    ]


def _bars(suite: SuiteSummary, scores: Scores) -> Callable[[SuiteMethod], Cell]:
    """Return what makes a method's score with a bar of its interval and seeds, all on one scale."""
    numbers = [v for m in suite.methods for v in (m.score, *(m.interval or ())) if v is not None]
    numbers += [v for m in suite.methods for v in m.by_seed.values()]
    low, high = min([0.0, *numbers]), max(numbers, default=1.0)
    high = max(1.0, high) if suite.shares else max(high, low + 1e-9)

    def place(value: float) -> float:
        return round((value - low) / (high - low) * 100, 1)

    def cell(method: SuiteMethod) -> Cell:
        text = scores.cell(method.score, method.interval)
        if method.score is None:
            return text
        baseline = suite.baseline_method.score
        bar = Bar(
            place(method.score),
            [place(end) for end in method.interval or ()],
            [place(score) for score in method.by_seed.values()],
            None if baseline is None else place(baseline),
            _STYLES[method.group],
        )
        return Cell(text.text, text.note, bar=bar)

    return cell


def _stratum_columns(suite: SuiteSummary, scores: Scores) -> list[Column]:
    def column(name: str) -> Column:
        n = suite.strata.get(name)
        head = Cell(name, f"n\u00a0=\u00a0{count(n)}" if n else "")
        return head, lambda method: scores.cell(method.by_stratum.get(name))

    return [column(name) for name in suite.stratum_names]


def _strata_apart(suite: SuiteSummary, scores: Scores) -> dict[str, Any] | None:
    if len(suite.stratum_names) <= _STRATA_IN_TABLE:
        return None
    return _table(suite, f"Held-out {suite.what}", _stratum_columns(suite, scores))


def _quadrants(suite: SuiteSummary, scores: Scores) -> dict[str, Any] | None:
    """Return the scores of both weights under both instructions; None if no method has them."""
    if not any(method.quadrants for method in suite.methods):
        return None

    def quadrant(name: str) -> Callable[[SuiteMethod], Cell]:
        def cell(method: SuiteMethod) -> Cell:
            spreads = method.quadrants.get(name, {}).values()
            greedy, *sampled = [scores.cell(s.mean, s.interval) for s in spreads] or [Cell()]
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
    corner = f"Held-out {suite.what}, greedy, below it avg@{suite.quadrant_samples}"
    columns = list(zip(heads, map(quadrant, QUADRANTS), strict=True))
    return _table(suite, corner, [*columns, (Cell("KL", "nats per token"), divergence)])


def _cost_columns(suite: SuiteSummary) -> list[Column]:
    def purpose(name: str) -> Column:
        def cell(method: SuiteMethod) -> Cell:
            absent = None if method.rollouts is None else 0
            return Cell(count(method.rollouts_by_purpose.get(name, absent)))

        return Cell(name), cell

    return [
        (Cell("Policy rollouts"), lambda m: Cell(count(m.rollouts))),
        *map(purpose, suite.purposes),
        (Cell("Evaluation rollouts"), lambda m: Cell(count(m.evaluation_rollouts))),
        (Cell("Generated tokens"), lambda m: Cell(count(m.generated_tokens))),
        (Cell("LLM calls"), lambda m: Cell(count(m.llm_calls))),
        (Cell("Money"), lambda m: Cell(money(m.money))),
        (Cell("Time"), lambda m: Cell(duration(m.seconds))),
    ]


def _panels(suite: SuiteSummary, read: Mapping[str, MethodCurves]) -> list[Chart]:
    """Draw a small chart for each method that has a curve, all on the same scales."""
    drawn = [(method, read[method.name]) for method in suite.ordered if read[method.name].lines]
    baseline = read[suite.baseline].lines
    shown = [(*each.lines[each.measure], *baseline.get(each.measure, ())) for _, each in drawn]
    points = [point for lines in shown for line in lines for point in line]
    longest = max((x for x, _ in points), default=1.0)
    heights = [y for _, y in points]
    several = len({each.measure for _, each in drawn}) > 1
    charts: list[Chart | None] = []
    for method, each in drawn:
        lines = each.lines[each.measure]
        series = [Series(method.label, line, _STYLES[method.group]) for line in lines]
        if method.name != suite.baseline:
            behind, label = baseline.get(each.measure, ()), suite.baseline_method.label
            series += [Series(label, line, "muted") for line in behind]
        reward = several and each.measure == "reward"
        charts.append(
            line_chart(
                f"{method.label}, {MEASURES['reward']}" if reward else method.label,
                series,
                x_label="policy rollouts",
                share=suite.shares,
                guides=each.stages,
                x_range=(0.0, longest or 1.0),
                y_range=(min(0.0, *heights), max(1.0 if suite.shares else 0.0, *heights)),
                size=PANEL,
            )
        )
    return [chart for chart in charts if chart]


def _heading(*methods: SuiteMethod) -> list[tuple[str, str]]:
    """Return (CSS class of its colour, label) of each method."""
    return [(_STYLES[method.group], method.label) for method in methods]


def _instructions(
    suite: SuiteSummary, read: Mapping[str, MethodCurves]
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the best instructions of first seeds in the table's order, each once with its methods."""
    methods: dict[str, list[SuiteMethod]] = {}
    for method in suite.ordered:
        by_seed = read[method.name].instructions.values()
        if text := method.instruction or next(iter(by_seed), None):
            methods.setdefault(text, []).append(method)
    return [(text, _heading(*methods[text])) for text in methods]


def _links(folder: Path, suite: SuiteSummary) -> list[tuple[str, str]]:
    """Return the folder of each run, with a relative link to its report; "" if there is none."""
    names = [name for method in suite.ordered for runs in method.runs.values() for name in runs]
    paths = [folder_of(folder, name) for name in names]
    return [
        (name, f"./{quote(name.strip('/'))}/report.html")
        if path is not None and (path / "report.html").is_file()
        else (name, "")
        for name, path in zip(names, paths, strict=True)
    ]
