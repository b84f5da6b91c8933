"""A suite's report: methods × seeds on one page, in one HTML file without scripts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from cotune.errors import ConfigError
from cotune.experiments.compare.results import GROUPS, SuiteMethod, SuiteSummary, suite_tables
from cotune.experiments.report.charts import Chart, Point, average, line_chart
from cotune.experiments.report.pages import moment, write_page
from cotune.run.run_dir import RunDir
from cotune.utils.tables import NONE, count, duration, money


def write_suite_report(folder: Path, suite: SuiteSummary) -> Path:
    """Write report.html into a suite's folder, from what its runs have recorded so far; return its path.

    The page names runs that are missing or broken.
    """
    missing: list[str] = []
    curves = {method.name: read_curves(folder, method, missing) for method in suite.methods}
    content = {
        "title": suite.name,
        "suite": suite,
        "refresh": any(method.status == "unfinished" for method in suite.methods),
        "facts": _facts(suite),
        "verdict": suite.verdict,
        "complaints": [method.complaint for method in suite.methods if method.complaint],
        "tables": suite_tables(suite),
        "panels": list(_panels(folder, suite, curves)),
        "missing": missing,
    }
    return write_page(folder, "suite.html.j2", content)


def _facts(suite: SuiteSummary) -> list[tuple[str, str]]:
    """Return what the header says was run, and what all finished runs cost together."""

    def total(name: str) -> float | None:
        # A method's numbers are means over its finished seeds.
        sums = [m.costs[name] * m.finished for m in suite.methods if name in m.costs]
        return sum(sums) if sums else None

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


def read_curves(folder: Path, method: SuiteMethod, missing: list[str]) -> list[list[Point]]:
    """Return (policy rollouts paid, training reward) of each seed of a method, its stages laid end to end.

    Runs that cannot be read are added to `missing`, one line each.
    """
    curves: list[list[Point]] = []
    for names in method.runs.values():
        curve: list[Point] = []
        begin = 0
        for name in names:
            try:
                run = RunDir.open(folder / name)
                rewards = {row["step"]: row.get("reward_mean") for row in run.read_metrics()}
                costs = [
                    row for row in run.read_costs() if row.committed and row.kind != "evaluate"
                ]
            except ConfigError as error:
                missing.append(str(error))
                break  # later stages would be at the wrong x
            for step, reward in rewards.items():
                if reward is not None:
                    paid = begin + sum(row.rollouts for row in costs if row.step <= step)
                    curve.append((float(paid), reward))
            begin += sum(row.rollouts for row in costs)
        if curve:
            curves.append(curve)
    return curves


def _panels(
    folder: Path, suite: SuiteSummary, curves: Mapping[str, Sequence[Sequence[Point]]]
) -> Iterator[tuple[Chart, list[tuple[str, str]]]]:
    """Yield the training reward of each method, with the baseline's in grey, all on the same scales.

    With it come (name, relative link) of the method's runs that have a report.
    """
    points = [point for of_method in curves.values() for curve in of_method for point in curve]
    baseline = suite.baseline_method
    for method in suite.ordered:
        css = GROUPS[method.group][1]
        series = [average(method.label, curve, css) for curve in curves[method.name]]
        if series and method.name != suite.baseline:
            grey = [average(baseline.label, curve, "muted") for curve in curves[baseline.name]]
            series = [*(replace(line, raw=()) for line in grey), *series]
        chart = line_chart(
            method.label,
            series,
            x_label="policy rollouts",
            share=suite.shares,
            x_range=(0.0, max((x for x, _ in points), default=1.0)),
            y_top=max((y for _, y in points), default=0.0),
        )
        links = [
            (name.partition("/")[2], f"./{quote(name)}/report.html")
            for runs in method.runs.values()
            for name in runs
            if (folder / name / "report.html").is_file()
        ]
        if chart is not None:
            yield chart, links
