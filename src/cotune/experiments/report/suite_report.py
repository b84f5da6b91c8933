"""A suite's report: methods × seeds on one page, in one HTML file without scripts."""

import bisect
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from cotune.errors import ConfigError
from cotune.experiments.compare.suite_summary import SuiteMethod, SuiteSummary
from cotune.experiments.compare.suite_table import STYLES, suite_tables
from cotune.experiments.report.charts import Chart, Point, Series, average, line_chart
from cotune.experiments.report.instructions import Segment, in_force, sentence_diff
from cotune.experiments.report.pages import moment, write_page
from cotune.run.costs import CostRow
from cotune.run.run_dir import RunDir
from cotune.utils.tables import NONE, count, duration, money

_MOST_TEXTS = 6  # instructions of a method that the page shows


@dataclass(frozen=True)
class Change:
    """A place where a stage begins, or another instruction leads: policy rollouts, a label, its stage, its text."""

    rollouts: float
    label: str
    stage: str
    text: str


@dataclass
class Course:
    """A method's course over the policy rollouts that it paid.

    Attributes:
        lines: (policy rollouts, training reward) of each seed, its stages laid end to end.
        changes: of the first seed.
        missing: what could not be read, one line each.
    """

    lines: list[list[Point]] = field(default_factory=list[list[Point]])
    changes: list[Change] = field(default_factory=list[Change])
    missing: list[str] = field(default_factory=list[str])

    def texts(self) -> list[tuple[str, list[Segment]]]:
        """Return (from where, text marked against the one before) of the instructions in force."""
        before = ["", *(change.text for change in self.changes)]
        marked = [
            (
                f"{change.stage}{change.label}, from rollout {count(change.rollouts)}",
                sentence_diff(previous, change.text),
            )
            for change, previous in zip(self.changes, before, strict=False)
        ]
        return marked if len(marked) <= _MOST_TEXTS else [marked[0], *marked[1 - _MOST_TEXTS :]]


def write_suite_report(folder: Path, suite: SuiteSummary) -> Path:
    """Write report.html into a suite's folder, from what its runs have recorded so far; return its path.

    The page names runs that are missing or broken.
    """
    courses = {method.name: read_course(folder, method) for method in suite.methods}
    content = {
        "title": suite.name,
        "suite": suite,
        "refresh": any(method.status == "unfinished" for method in suite.methods),
        "facts": _facts(suite),
        "verdict": suite.verdict,
        "complaints": [method.complaint for method in suite.methods if method.complaint],
        "tables": suite_tables(suite),
        "panels": _panels(suite, courses),
        "links": {method.name: _links(folder, method) for method in suite.methods},
        "missing": [line for course in courses.values() for line in course.missing],
    }
    return write_page(folder, "suite.html.j2", content)


def _facts(suite: SuiteSummary) -> list[tuple[str, str]]:
    """Return what the header says was run, and what all finished runs cost together."""

    def total(name: str) -> float | None:
        # A method's numbers are means over its finished seeds.
        means = [(method.costs.get(name), method.finished) for method in suite.methods]
        sums = [mean * seeds for mean, seeds in means if mean is not None]
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


def read_course(folder: Path, method: SuiteMethod) -> Course:
    """Read a method's run folders; missing or broken ones are listed, not raised."""
    course = Course()
    for number, names in enumerate(method.runs.values()):
        line: list[Point] = []
        begin = 0.0
        for name in names:
            try:
                run = RunDir.open(folder / name)
                paid = _count_rollouts(run.read_costs())
                rewards = {row["step"]: row.get("reward_mean") for row in run.read_metrics()}
                leaders = _leaders(run)
            except ConfigError as error:
                course.missing.append(str(error))
                break  # later stages would be at the wrong x
            line += [(begin + paid(step), y) for step, y in rewards.items() if y is not None]
            if number == 0:
                stage = f"{name.rpartition('/')[2]}, " if len(names) > 1 else ""
                course.changes += [
                    Change(begin + paid(step) * bool(step), label, stage, text)
                    for step, label, text in leaders
                ]
            begin += paid(10**9)  # of all steps
        if line:
            course.lines.append(line)
    return course


def _leaders(run: RunDir) -> list[tuple[int, str, str]]:
    """Return (step, id, text) of the instruction that a run begins under, and of those that lead later."""
    texts = {row["id"]: row["text"] for row in run.read_instructions()}
    initial = next(iter(texts), "i0")
    if not texts:  # it never changes
        texts = {initial: (run.read_summary() or {}).get("best_instruction") or ""}
    leaders = [(step, name) for step, name in in_force(run.read_events()) if name != initial]
    return [(step, name, texts.get(name, "")) for step, name in ((0, initial), *leaders)]


def _count_rollouts(costs: Iterable[CostRow]) -> Callable[[int], float]:
    """Return a function of a step: the policy rollouts paid up to its end, without evaluation."""
    rows = sorted(
        (row.step, row.rollouts) for row in costs if row.committed and row.kind != "evaluate"
    )
    steps = [step for step, _ in rows]
    sums = [0, *itertools.accumulate(rollouts for _, rollouts in rows)]
    return lambda step: float(sums[bisect.bisect_right(steps, step)])


def _panels(
    suite: SuiteSummary, courses: Mapping[str, Course]
) -> list[tuple[SuiteMethod, Chart, list[tuple[str, list[Segment]]]]]:
    """Draw each method's training reward, with the baseline's in grey, all on the same scales."""
    points = [p for course in courses.values() for line in course.lines for p in line]
    longest = max((x for x, _ in points), default=1.0)
    highest = max((y for _, y in points), default=0.0)
    panels: list[tuple[SuiteMethod, Chart, list[tuple[str, list[Segment]]]]] = []
    for method in suite.ordered:
        course = courses[method.name]
        lines = [average(method.label, line, STYLES[method.group])[0] for line in course.lines]
        grey: list[Series] = []
        if method.name != suite.baseline:
            label = suite.baseline_method.label
            baseline = courses[suite.baseline].lines
            grey = [
                Series(label, average(label, line, "muted")[0].points, "muted") for line in baseline
            ]
        chart = line_chart(
            method.label,
            [*grey, *lines] if lines else [],
            x_label="policy rollouts",
            share=suite.shares,
            guides=[
                (change.rollouts, change.label) for change in course.changes if change.rollouts
            ],
            x_range=(0.0, longest or 1.0),
            y_top=highest,
        )
        if chart is not None:
            panels.append((method, chart, course.texts()))
    return panels


def _links(folder: Path, method: SuiteMethod) -> list[tuple[str, str]]:
    """Return the runs of a method that have a report, with a relative link to it."""
    names = [name for runs in method.runs.values() for name in runs]
    return [
        (name.partition("/")[2], f"./{quote(name)}/report.html")
        for name in names
        if (folder / name / "report.html").is_file()
    ]
