"""A suite's report: methods × seeds on one page, in one HTML file without scripts."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cotune.errors import ConfigError
from cotune.experiments.compare.suite_summary import GROUPS, SuiteMethod, SuiteSummary
from cotune.experiments.compare.suite_table import suite_tables
from cotune.experiments.report.charts import Chart, Point, average, line_chart
from cotune.experiments.report.pages import moment, write_page
from cotune.run.run_dir import RunDir
from cotune.utils.tables import NONE, count, duration, money

Links = list[tuple[str, str]]
"""(name, relative link) of runs that have a report."""


def write_suite_report(folder: Path, suite: SuiteSummary) -> Path:
    """Write report.html into a suite's folder, from what its runs have recorded so far; return its path.

    The page names runs that are missing or broken.
    """
    missing: list[str] = []
    lines = {method.name: read_lines(folder, method, missing) for method in suite.methods}
    content: dict[str, Any] = {
        "title": suite.name,
        "suite": suite,
        "refresh": any(method.status == "unfinished" for method in suite.methods),
        "facts": _facts(suite),
        "verdict": suite.verdict,
        "complaints": [method.complaint for method in suite.methods if method.complaint],
        "tables": suite_tables(suite),
        "panels": list(_panels(folder, suite, lines)),
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


def read_lines(folder: Path, method: SuiteMethod, missing: list[str]) -> list[list[Point]]:
    """Read a method's run folders; return (policy rollouts paid, training reward) of each seed.

    A seed's stages are laid end to end.

    Args:
        missing: what cannot be read is added, one line each.
    """
    lines: list[list[Point]] = []
    for names in method.runs.values():
        line: list[Point] = []
        paid_before = 0
        for name in names:
            try:
                run = RunDir.open(folder / name)
                costs = [
                    row for row in run.read_costs() if row.committed and row.kind != "evaluate"
                ]
                rewards = {row["step"]: row.get("reward_mean") for row in run.read_metrics()}
            except ConfigError as error:
                missing.append(str(error))
                break  # later stages would be at the wrong x
            for step, reward in rewards.items():
                paid = paid_before + sum(row.rollouts for row in costs if row.step <= step)
                line += [(float(paid), reward)] if reward is not None else []
            paid_before += sum(row.rollouts for row in costs)
        lines += [line] if line else []
    return lines


def _panels(
    folder: Path, suite: SuiteSummary, lines: Mapping[str, list[list[Point]]]
) -> Iterator[tuple[SuiteMethod, Chart, Links]]:
    """Yield the training reward of each method, with the baseline's in grey, all on the same scales."""
    points = [point for of_method in lines.values() for line in of_method for point in line]
    longest = max((x for x, _ in points), default=1.0)
    baseline = suite.baseline_method
    for method in suite.ordered:
        css = GROUPS[method.group][1]
        series = [average(method.label, line, css)[0] for line in lines[method.name]]
        if series and method.name != suite.baseline:
            grey = [average(baseline.label, line, "muted")[0] for line in lines[baseline.name]]
            series = [*(replace(line, raw=()) for line in grey), *series]
        chart = line_chart(
            method.label,
            series,
            x_label="policy rollouts",
            share=suite.shares,
            x_range=(0.0, longest or 1.0),
            y_top=max((y for _, y in points), default=0.0),
        )
        links = [
            (name.partition("/")[2], f"./{quote(name)}/report.html")
            for names in method.runs.values()
            for name in names
            if (folder / name / "report.html").is_file()
        ]
        if chart is not None:
            yield method, chart, links
