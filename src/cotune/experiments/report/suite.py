"""A suite's report: methods × seeds on one page, in one HTML file without scripts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cotune.experiments.compare.suite_summary import Ends, SuiteMethod, SuiteSummary
from cotune.experiments.report.formats import (
    count,
    duration,
    moment,
    money,
    number,
    number_range,
    percent,
    points,
    readable,
    share_range,
    signed,
)
from cotune.experiments.report.suite_curves import (
    AXES,
    Measure,
    MethodCurves,
    folder_of,
    read_curves,
)
from cotune.experiments.report.suite_figures import MEASURES, Bars, group_style, panels
from cotune.run.json_files import write_atomic

__all__ = ["write_suite_report"]

_NONE = "–"
_STRATA_IN_TABLE = 4
_PURPOSES = ("train", "verify", "evolve")


def write_suite_report(folder: Path | str, summary: Mapping[str, Any] | None = None) -> Path:
    """Writes report.html into a suite's folder, from its files; of what is finished so far.

    Runs that are missing or broken are told of on the page.

    Args:
        folder: the suite's.
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
    report = folder / "report.html"
    html = _environment(suite).get_template("suite.html.j2").render(**_content(folder, suite, read))
    write_atomic(report, readable(html).encode(errors="replace"))
    return report


def chance(value: float | None) -> str:
    """A probability with two digits."""
    return _NONE if value is None else f"{value:.2f}"


def direction(ends: Ends | None) -> str:
    """CSS class of a difference whose interval excludes zero; "" else."""
    if ends is None:
        return ""
    return "up" if ends[0] > 0 else "down" if ends[1] < 0 else ""


def short_percent(value: float | None) -> str:
    """A share as per cent with one digit, without the sign."""
    return _NONE if value is None else f"{value * 100:.1f}"


def point_range(ends: Ends) -> str:
    """An interval of differences in whole percentage points, signed."""
    return " to ".join(f"{end * 100:+.0f}".replace("-", "−") for end in ends)


def signed_range(ends: Ends) -> str:
    """An interval of differences with three digits, signed."""
    return " to ".join(signed(end) for end in ends)


def _environment(suite: SuiteSummary) -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__ or __name__, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (count, money, duration, chance, direction):
        environment.filters[function.__name__] = function
    shares = suite.shares
    environment.filters["score"] = percent if shares else number
    environment.filters["short"] = short_percent if shares else number
    environment.filters["change"] = points if shares else signed
    environment.filters["interval"] = share_range if shares else number_range
    environment.filters["change_interval"] = point_range if shares else signed_range
    return environment


def _content(folder: Path, suite: SuiteSummary, read: dict[str, MethodCurves]) -> dict[str, object]:
    """What the template is given."""
    package = files(__package__ or __name__)
    style = "".join(
        package.joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "suite.css")
    )
    strata = suite.stratum_names
    inside = len(strata) <= _STRATA_IN_TABLE
    bars = Bars(suite)
    curves = [block for axis in AXES if (block := panels(suite, read, axis)) is not None]
    found = {each.measure for each in read.values() if each.curves}
    measures: list[Measure] = [name for name in MEASURES if name in found]
    return {
        "style": Markup(style),  # ours, not a model's
        "suite": suite,
        "facts": [*_facts(suite), ("Spent", ", ".join(_in_all(suite)))],
        "colours": {group: group_style(group) for group, _, _ in suite.grouped},
        "bars": {method.name: bars.of(method) for method in suite.methods},
        "seeds": [str(seed) for seed in suite.seeds],
        "strata": strata if inside else [],
        "strata_apart": [] if inside else strata,
        "footnotes": {note: i for i, note in enumerate(suite.notes, 1)},
        "troubled": [method for method in suite.methods if method.trouble],
        "verdict": suite.verdict or _verdict(suite),
        "spent": _spent(suite),
        "costs": _costs(suite),
        "curves": curves,
        "measure": " or ".join(MEASURES[name] for name in measures),
        "measures": measures,
        "without_curve": [m.title for m in suite.methods if not read[m.name].curves],
        "several_stages": any(c.stages for each in read.values() for c in each.curves.values()),
        "instructions": _instructions(suite, read),
        "links": _links(folder, suite),
        "missing": [line for each in read.values() for line in each.missing],
    }


def _facts(suite: SuiteSummary) -> list[tuple[str, str]]:
    """What the header says was run."""
    budget = f"{count(suite.budget)} policy rollouts" if suite.budget else ""
    facts = [
        ("World", suite.environment),
        ("Policy", suite.policy),
        ("LLM", suite.llm),
        ("Methods", str(len(suite.methods))),
        ("Seeds", ", ".join(map(str, suite.seeds))),
        ("Budget of a run", budget),
        ("Held-out questions", count(suite.n) if suite.n else ""),
        ("When", moment(suite.created) if suite.created is not None else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _verdict(suite: SuiteSummary) -> str:
    """One sentence on the outcome, where the summary has none."""
    scored = [m for m in suite.methods if m.score is not None and m.status == "ok"]
    if not scored:
        return "No method has a complete result yet."
    best = max(scored, key=lambda method: method.score or 0.0)
    score = percent if suite.shares else number
    text = f"{best.title} has the highest held-out {suite.what}, {score(best.score)}"
    baseline = suite.baseline_method
    if baseline and baseline.score is not None and baseline is not best:
        text += f"; {baseline.title}, the baseline, has {score(baseline.score)}"
    return f"{text}."


def _total(suite: SuiteSummary, values: Sequence[float | None]) -> float | None:
    """Sum over all finished runs of what is a mean over each method's seeds."""
    known = [
        value * method.seeds_done
        for method, value in zip(suite.methods, values, strict=True)
        if value is not None
    ]
    return sum(known) if known else None


def _spent(suite: SuiteSummary) -> list[tuple[str, str]]:
    """What all finished runs cost together."""
    methods = suite.methods
    rows = [
        ("Finished (methods × seeds)", count(sum(method.seeds_done for method in methods))),
        ("Policy rollouts", count(_total(suite, [m.rollouts for m in methods]))),
        ("Evaluation rollouts", count(_total(suite, [m.evaluation_rollouts for m in methods]))),
        ("Generated tokens", count(_total(suite, [m.generated_tokens for m in methods]))),
        ("LLM calls", count(_total(suite, [m.llm_calls for m in methods]))),
        ("Money", money(_total(suite, [m.money for m in methods]))),
        ("Time, summed over runs", duration(_total(suite, [m.seconds for m in methods]))),
    ]
    return [row for row in rows if row[1] != _NONE]


def _in_all(suite: SuiteSummary) -> list[str]:
    """The same for the header, in few words."""
    spent = dict(_spent(suite))
    parts = [f"{spent['Finished (methods × seeds)']} of {_cells(suite)} runs"]
    if rollouts := spent.get("Policy rollouts"):
        parts.append(f"{rollouts} policy rollouts")
    return parts + [spent[key] for key in ("Money", "Time, summed over runs") if key in spent]


def _cells(suite: SuiteSummary) -> int:
    return len(suite.methods) * len(suite.seeds)


@dataclass(frozen=True, slots=True)
class _Costs:
    """The cost table: its columns, and by method a value for each."""

    columns: list[str]
    rows: dict[str, list[str]]


def _costs(suite: SuiteSummary) -> _Costs:
    named = {purpose for method in suite.methods for purpose in method.rollouts_by_purpose}
    purposes = [p for p in _PURPOSES if p in named] + sorted(named - {*_PURPOSES, "evaluate"})

    def row(method: SuiteMethod) -> list[str]:
        by_purpose = method.rollouts_by_purpose
        absent = 0 if by_purpose or method.rollouts == 0 else None
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
    return _Costs(columns, {method.name: row(method) for method in suite.methods})


@dataclass(frozen=True, slots=True)
class _Instruction:
    """A text, the methods that it is best for on their first seed, and their other seeds' texts."""

    text: str
    methods: list[SuiteMethod]
    others: list[tuple[str, str, str]]


def _instructions(suite: SuiteSummary, read: Mapping[str, MethodCurves]) -> list[_Instruction]:
    """The best instructions, those of methods that share one together, in the table's order."""
    found: dict[str, _Instruction] = {}
    for _, _, methods in suite.grouped:
        for method in methods:
            by_seed = dict(read[method.name].instructions)
            first = next(iter(by_seed), None)
            text = method.instruction or (by_seed[first] if first is not None else None)
            if not text:
                continue
            one = found.setdefault(text, _Instruction(text, [], []))
            one.methods.append(method)
            one.others.extend(
                (method.title, seed, other)
                for seed, other in by_seed.items()
                if seed != first and other != text
            )
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _Link:
    """A run folder's report; `href` is "" where there is none."""

    seed: str
    stage: str
    href: str


def _links(folder: Path, suite: SuiteSummary) -> list[tuple[SuiteMethod, list[_Link]]]:
    """Each method's runs with relative links to those reports that are there."""
    rows: list[tuple[SuiteMethod, list[_Link]]] = []
    for _, _, methods in suite.grouped:
        for method in methods:
            links = [
                _Link(seed, Path(name).name, _href(folder, name))
                for seed, names in method.runs.items()
                for name in names
            ]
            if links:
                rows.append((method, links))
    return rows


def _href(folder: Path, name: str) -> str:
    path = folder_of(folder, name)
    if path is None or not (path / "report.html").is_file():
        return ""
    return f"./{quote(name.strip('/'))}/report.html"
