"""A suite's report: methods × seeds on one page, in one HTML file without scripts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from cotune.experiments.compare.suite_summary import SuiteMethod, SuiteSummary
from cotune.experiments.evaluate.quadrants import QUADRANTS
from cotune.experiments.report.charts import PANEL, Chart, Series, interval_bar, line_chart
from cotune.experiments.report.pages import (
    NONE,
    count,
    duration,
    moment,
    money,
    write_page,
)
from cotune.experiments.report.suite_curves import (
    AXES,
    MEASURES,
    Axis,
    Curve,
    Measure,
    MethodCurves,
    folder_of,
    read_curves,
)

_STRATA_IN_TABLE = 4
_STYLES = {
    "inference": "s5",
    "trained": "s0",
    "prompt": "s4",
    "staged": "s3",
    "ours": "s1",
    "ablation": "s2",
}
_UNITS = ((3600 * 3, 3600.0, "hours"), (60 * 3, 60.0, "minutes"), (0, 1.0, "seconds"))


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
        from cotune.experiments.compare.progress import summary_so_far

        summary = summary_so_far(folder)
    suite = SuiteSummary.of(summary, folder / "summary.json")
    read = {method.name: read_curves(folder, method) for method in suite.methods}
    strata = suite.stratum_names
    inside = len(strata) <= _STRATA_IN_TABLE
    measured = {each.measure for each in read.values() if each.curves}
    measures: list[Measure] = [name for name in MEASURES if name in measured]
    spent = _spent(suite)
    content = {
        "suite": suite,
        "facts": [*_facts(suite), ("Spent", _spent_in_short(suite, dict(spent)))],
        "colours": _STYLES,
        "bars": _bars(suite),
        "baseline": suite.baseline_method,
        "seeds": [str(seed) for seed in suite.seeds],
        "strata": strata if inside else [],
        "strata_apart": [] if inside else strata,
        "before": any(method.before is not None for method in suite.methods),
        "quadrants": QUADRANTS if any(method.quadrants for method in suite.methods) else (),
        "hinted": [method for method in suite.methods if method.hints],
        "footnotes": {note: i for i, note in enumerate(suite.notes, 1)},
        "troubled": [method for method in suite.methods if method.trouble],
        "verdict": suite.verdict,
        "spent": spent,
        "costs": _costs(suite),
        "curves": [block for axis in AXES if (block := _panels(suite, read, axis))],
        "measure": " or ".join(MEASURES[name] for name in measures),
        "measures": measures,
        "without_curve": [m.label for m in suite.methods if not read[m.name].curves],
        "several_stages": any(c.stages for each in read.values() for c in each.curves.values()),
        "instructions": _instructions(suite, read),
        "links": _links(folder, suite),
        "missing": [line for each in read.values() for line in each.missing],
    }
    sheets = ["report.css", "suite.css"]
    return write_page(folder, "suite.html.j2", sheets, suite.shares, content)


def _facts(suite: SuiteSummary) -> list[tuple[str, str]]:
    """Return what the header says was run."""
    facts = [
        ("World", suite.environment),
        ("Policy", suite.policy),
        ("Proposer", suite.llm),
        ("Methods", str(len(suite.methods))),
        ("Seeds", ", ".join(map(str, suite.seeds))),
        ("Budget of a run", f"{count(suite.budget)} policy rollouts"),
        ("Held-out questions", count(suite.n) if suite.n else ""),
        ("When", moment(suite.created)),
    ]
    return [(name, value) for name, value in facts if value]


def _spent(suite: SuiteSummary) -> list[tuple[str, str]]:
    """Return what all finished runs cost together."""

    def total(name: str) -> float | None:
        # A method's numbers are means over its finished seeds.
        found = [(getattr(method, name), method.finished) for method in suite.methods]
        known = [mean * seeds for mean, seeds in found if mean is not None]
        return sum(known) if known else None

    rows = [
        ("Finished (methods × seeds)", count(sum(method.finished for method in suite.methods))),
        ("Policy rollouts", count(total("rollouts"))),
        ("Evaluation rollouts", count(total("evaluation_rollouts"))),
        ("Generated tokens", count(total("generated_tokens"))),
        ("LLM calls", count(total("llm_calls"))),
        ("Money", money(total("money"))),
        ("Time, summed over runs", duration(total("seconds"))),
    ]
    return [row for row in rows if row[1] != NONE]


def _spent_in_short(suite: SuiteSummary, spent: Mapping[str, str]) -> str:
    runs = len(suite.methods) * len(suite.seeds)
    parts = [f"{spent['Finished (methods × seeds)']} of {runs} runs"]
    if rollouts := spent.get("Policy rollouts"):
        parts.append(f"{rollouts} policy rollouts")
    parts += [spent[key] for key in ("Money", "Time, summed over runs") if key in spent]
    return ", ".join(parts)


def _costs(suite: SuiteSummary) -> dict[str, Any]:
    """Return the cost table: its `columns`, and in `rows` by method a value for each."""
    purposes = suite.purposes

    def row(method: SuiteMethod) -> list[str]:
        by_purpose = method.rollouts_by_purpose
        absent = None if method.rollouts is None else 0
        return [
            count(method.rollouts),
            *(count(by_purpose.get(purpose, absent)) for purpose in purposes),
            count(method.evaluation_rollouts),
            count(method.generated_tokens),
            count(method.llm_calls),
            money(method.money),
            duration(method.seconds),
        ]

    columns = [
        "Policy rollouts", *purposes, "Evaluation rollouts", "Generated tokens", "LLM calls",
        "Money", "Time",
    ]  # fmt: skip
    return {"columns": columns, "rows": {method.name: row(method) for method in suite.methods}}


def _bars(suite: SuiteSummary) -> dict[str, Markup]:
    """Draw each method's score with its interval and seeds, all on one scale; "" without a score."""
    numbers = [v for m in suite.methods for v in (m.score, *(m.interval or ())) if v is not None]
    numbers += [v for m in suite.methods for v in m.by_seed.values()]
    low, high = min([0.0, *numbers]), max(numbers, default=1.0)
    between = (low, max(1.0, high) if suite.shares else max(high, low + 1e-9))
    return {
        method.name: Markup("")
        if method.score is None
        else interval_bar(
            method.score,
            method.interval,
            list(method.by_seed.values()),
            between=between,
            style=_STYLES[method.group],
            guide=suite.baseline_method.score,
        )
        for method in suite.methods
    }


def _panels(
    suite: SuiteSummary, read: Mapping[str, MethodCurves], axis: Axis
) -> tuple[str, list[tuple[Chart, str]]] | None:
    """Draw a small chart for each method that has a curve, all on the same scales.

    Returns:
        The heading, and the charts with their CSS classes; None if no method has a curve.
    """

    def curve_of(name: str, method: SuiteMethod) -> Curve | None:
        return read[name].curves.get((read[method.name].measure, axis))

    drawn = [
        (method, curve, curve_of(suite.baseline, method) if method.name != suite.baseline else None)
        for method in suite.ordered
        if (curve := curve_of(method.name, method)) is not None
    ]
    if not drawn:
        return None
    curves = [curve for _, *both in drawn for curve in both if curve is not None]
    longest = max(curve.mean[-1][0] for curve in curves)
    divisor, unit = 1.0, "policy rollouts"
    if axis == "seconds":
        divisor, unit = next((each, name) for least, each, name in _UNITS if longest >= least)
    ends = [y for curve in curves for _, *both in curve.band for y in both]
    y_range = (min(0.0, *ends), max(1.0 if suite.shares else 0.0, *ends))
    several = len({read[method.name].measure for method, _, _ in drawn}) > 1
    panels: list[tuple[Chart, str]] = []
    for method, whole, baseline in drawn:
        measure, colour = read[method.name].measure, _STYLES[method.group]
        curve = whole.scaled(divisor)
        series = [
            Series(method.label, curve.mean, colour, band=curve.band if curve.seeds > 1 else ())
        ]
        if baseline is not None:
            series.append(
                Series(suite.baseline_method.label, baseline.scaled(divisor).mean, "muted")
            )
        chart = line_chart(
            f"{method.label}: {MEASURES[measure]} by {unit}",
            series,
            note=MEASURES[measure] if several and measure == "reward" else "",
            x_label=unit,
            unit="share" if suite.shares else "number",
            guides=curve.stages,
            x_range=(0.0, longest / divisor or 1.0),
            y_range=y_range,
            size=PANEL,
        )
        if chart is not None:
            panels.append((replace(chart, title=method.label), colour))
    return "By policy rollouts" if axis == "rollouts" else "By wall time", panels


@dataclass(frozen=True, slots=True)
class _Instruction:
    """A text, the methods that it is best for on their first seed, and their other seeds' texts."""

    text: str
    methods: list[SuiteMethod]
    others: list[tuple[str, str, str]]


def _instructions(suite: SuiteSummary, read: Mapping[str, MethodCurves]) -> list[_Instruction]:
    """Return the best instructions, each once with its methods, in the table's order."""
    found: dict[str, _Instruction] = {}
    for method in suite.ordered:
        by_seed = dict(read[method.name].instructions)
        first = next(iter(by_seed), None)
        text = method.instruction or (by_seed[first] if first is not None else None)
        if not text:
            continue
        one = found.setdefault(text, _Instruction(text, [], []))
        one.methods.append(method)
        one.others.extend(
            (method.label, seed, other)
            for seed, other in by_seed.items()
            if seed != first and other != text
        )
    return list(found.values())


def _links(folder: Path, suite: SuiteSummary) -> list[tuple[SuiteMethod, list[dict[str, str]]]]:
    """Return each method's runs, with relative links to the reports that exist, else ""."""

    def href(name: str) -> str:
        path = folder_of(folder, name)
        if path is None or not (path / "report.html").is_file():
            return ""
        return f"./{quote(name.strip('/'))}/report.html"

    rows = [
        (
            method,
            [
                {"seed": seed, "stage": Path(name).name, "href": href(name)}
                for seed, names in method.runs.items()
                for name in names
            ],
        )
        for method in suite.ordered
    ]
    return [row for row in rows if row[1]]
