"""A suite's report: methods × seeds on one page, in one HTML file without scripts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from cotune.errors import ConfigError
from cotune.experiments.compare.results import GROUPS, SuiteMethod, SuiteSummary, suite_tables
from cotune.experiments.report.charts import Chart, Point, average, line_chart
from cotune.experiments.report.pages import moment, write_page
from cotune.experiments.report.run_report import leaders
from cotune.run.run_dir import RunDir
from cotune.utils.tables import NONE, count, duration, money

_MOST_TEXTS = 6  # instructions of a method that the page shows


@dataclass
class Course:
    """A method's course over the policy rollouts that it paid.

    Attributes:
        lines: (policy rollouts, training reward) of each seed, its stages laid end to end.
        changes: of the first seed, where a stage begins or another instruction leads: policy rollouts, the
            instruction's id, its stage, its text.
    """

    lines: list[list[Point]]
    changes: list[tuple[float, str, str, str]]

    def texts(self) -> list[tuple[str, str, str]]:
        """Return (from where, text, the text before) of the instructions in force, the first and the last ones."""
        before = ["", *(text for *_, text in self.changes)]
        texts = [
            (f"{stage}{name}, from rollout {count(rollouts)}", text, previous)
            for (rollouts, name, stage, text), previous in zip(self.changes, before, strict=False)
        ]
        return texts if len(texts) <= _MOST_TEXTS else [texts[0], *texts[1 - _MOST_TEXTS :]]


def write_suite_report(folder: Path, suite: SuiteSummary) -> Path:
    """Write report.html into a suite's folder, from what its runs have recorded so far; return its path.

    The page names runs that are missing or broken.
    """
    missing: list[str] = []
    courses = {method.name: read_course(folder, method, missing) for method in suite.methods}
    content = {
        "title": suite.name,
        "suite": suite,
        "refresh": any(method.status == "unfinished" for method in suite.methods),
        "facts": _facts(suite),
        "verdict": suite.verdict,
        "complaints": [method.complaint for method in suite.methods if method.complaint],
        "tables": suite_tables(suite),
        "panels": list(_panels(folder, suite, courses)),
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


def read_course(folder: Path, method: SuiteMethod, missing: list[str]) -> Course:
    """Read a method's run folders; what cannot be read is added to `missing`, one line each."""
    course = Course([], [])
    for names in method.runs.values():
        line: list[Point] = []
        changes: list[tuple[float, str, str, str]] = []
        begin = 0
        for name in names:
            try:
                run = RunDir.open(folder / name)
                rewards = {row["step"]: row.get("reward_mean") for row in run.read_metrics()}
                costs = [
                    row for row in run.read_costs() if row.committed and row.kind != "evaluate"
                ]
                texts = {row["id"]: row["text"] for row in run.read_instructions()}
                # Without instructions that are born, it never changes.
                texts = texts or {"i0": (run.read_summary() or {}).get("best_instruction") or ""}
                initial = next(iter(texts))
                later = [each for each in leaders(run.read_events()) if each[1] != initial]
            except ConfigError as error:
                missing.append(str(error))
                break  # later stages would be at the wrong x
            paid = {
                step: begin + sum(row.rollouts for row in costs if row.step <= step)
                for step in (*rewards, *(step for step, _ in later))
            }
            line += [(float(paid[step]), y) for step, y in rewards.items() if y is not None]
            stage = f"{name.rpartition('/')[2]}, " if len(names) > 1 else ""
            changes += [
                (float(paid[step] if step else begin), label, stage, texts.get(label, ""))
                for step, label in ((0, initial), *later)
            ]
            begin += sum(row.rollouts for row in costs)
        if line:
            course.lines.append(line)
        course.changes = course.changes or changes
    return course


def _panels(
    folder: Path, suite: SuiteSummary, courses: Mapping[str, Course]
) -> Iterator[tuple[Chart, list[tuple[str, str, str]], list[tuple[str, str]]]]:
    """Yield the training reward of each method, with the baseline's in grey, all on the same scales.

    With it come the instructions in force, and (name, relative link) of the method's runs that have a report.
    """
    points = [p for course in courses.values() for line in course.lines for p in line]
    longest = max((x for x, _ in points), default=1.0)
    baseline = suite.baseline_method
    for method in suite.ordered:
        course = courses[method.name]
        css = GROUPS[method.group][1]
        series = [average(method.label, line, css)[0] for line in course.lines]
        if series and method.name != suite.baseline:
            lines = courses[baseline.name].lines
            grey = [average(baseline.label, line, "muted")[0] for line in lines]
            series = [*(replace(line, raw=()) for line in grey), *series]
        chart = line_chart(
            method.label,
            series,
            x_label="policy rollouts",
            share=suite.shares,
            guides=[(rollouts, name) for rollouts, name, _, _ in course.changes if rollouts],
            x_range=(0.0, longest or 1.0),
            y_top=max((y for _, y in points), default=0.0),
        )
        links = [
            (name.partition("/")[2], f"./{quote(name)}/report.html")
            for runs in method.runs.values()
            for name in runs
            if (folder / name / "report.html").is_file()
        ]
        if chart is not None:
            yield chart, course.texts(), links
