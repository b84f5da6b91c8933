"""A suite's report: methods × seeds on one page, in one HTML file without scripts."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from cotune.experiments.compare.suite_summary import SuiteMethod, SuiteSummary, read_suite
from cotune.experiments.compare.suite_table import (
    STYLES,
    cost_table,
    quadrant_table,
    result_table,
    strata_table,
)
from cotune.experiments.report.charts import PANEL, Chart, Series, line_chart
from cotune.experiments.report.pages import moment, write_page
from cotune.experiments.report.suite_curves import MEASURES, MethodCurves, folder_of, read_curves
from cotune.utils.tables import NONE, count, duration, money


def write_suite_report(folder: Path | str, suite: SuiteSummary | None = None) -> Path:
    """Write report.html into a suite's folder, from what is finished so far.

    The page names runs that are missing or broken.

    Args:
        folder: the suite's folder.
        suite: its summary; None reads it.

    Returns:
        The path of report.html.

    Raises:
        ConfigError: `folder` holds no suite's summary.json, or a broken one.
    """
    folder = Path(folder)
    suite = suite or read_suite(folder)
    read = {method.name: read_curves(folder, method) for method in suite.methods}
    measures = {each.measure for each in read.values() if each.lines}
    content = {
        "title": suite.name,
        "suite": suite,
        "facts": _facts(suite),
        "verdict": suite.verdict,
        "troubled": [method for method in suite.methods if method.trouble],
        "result": result_table(suite),
        "quadrants": quadrant_table(suite),
        "strata": strata_table(suite),
        "costs": cost_table(suite),
        "panels": _panels(suite, read),
        "measure": " or ".join(MEASURES[name] for name in MEASURES if name in measures),
        "without_curve": [m.label for m in suite.methods if not read[m.name].lines],
        "instructions": _instructions(suite, read),
        "links": _links(folder, suite),
        "missing": [line for each in read.values() for line in each.missing],
    }
    return write_page(folder, "suite.html.j2", content)


def _facts(suite: SuiteSummary) -> list[tuple[str, str]]:
    """Return what the header says was run, and what all finished runs cost together."""

    def total(name: str) -> float | None:
        # A method's numbers are means over its finished seeds.
        means = [(method.costs.get(name), method.finished) for method in suite.methods]
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
        series = [Series(method.label, line, STYLES[method.group]) for line in lines]
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
    return [(STYLES[method.group], method.label) for method in methods]


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
