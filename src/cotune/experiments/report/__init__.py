"""A run's or a comparison's report: one HTML file without scripts, readable from disk."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cotune.experiments.evaluate import EXACT_MATCH, wilson
from cotune.experiments.report import figures
from cotune.experiments.report.charts import Chart
from cotune.experiments.report.hints import hints_of, outside_phases
from cotune.experiments.report.lineage import Member, Segment, family, lives, sentence_diff
from cotune.experiments.report.reading import (
    Arm,
    Source,
    mask_runs,
    read_source,
    sample_sizes,
    stratum_value,
)
from cotune.experiments.suite_summary import is_suite
from cotune.json_files import Row, write_atomic
from cotune.run_dir import RunDir, read_summary

__all__ = ["write_report"]

_THIN = "\u202f"
_NONE = "–"
_HARD = "Hard strata"
_PURPOSES = ("train", "verify", "evolve", "evaluate")


def write_report(folder: RunDir | Path | str) -> Path:
    """Writes report.html into a run folder or a comparison's folder, from its files only.

    A comparison's folder has a summary.json whose arms name their folders, or the arms' run folders
    as its subfolders. A run without a summary is reported as far as it came.

    Returns:
        The path of report.html.

    Raises:
        ConfigError: `folder` holds no run, or one of its files cannot be read.
    """
    path = folder.path if isinstance(folder, RunDir) else Path(folder)
    if not RunDir.is_run(path) and is_suite(read_summary(path)):
        from cotune.experiments.report.suite import write_suite_report

        return write_suite_report(path)
    html = _render(read_source(path))
    report = path / "report.html"
    write_atomic(report, html.encode(errors="replace"))
    return report


def percent(value: float | None) -> str:
    """A share as per cent with one digit."""
    return _NONE if value is None else f"{value * 100:.1f}{_THIN}%"


def points(value: float | None) -> str:
    """A difference of shares in percentage points, signed."""
    return _NONE if value is None else f"{value * 100:+.1f}".replace("-", "−")


def signed(value: float | None) -> str:
    """A difference with three digits, signed."""
    return _NONE if value is None else f"{value:+.3f}".replace("-", "−")


def share_range(ends: Sequence[float]) -> str:
    """An interval of shares in whole per cent."""
    return f"{ends[0] * 100:.0f}–{ends[1] * 100:.0f}"


def number_range(ends: Sequence[float]) -> str:
    """An interval with three digits."""
    return " to ".join(f"{end:.3f}".replace("-", "−") for end in ends)


def count(value: float | None) -> str:
    """A whole number, its thousands set apart."""
    return _NONE if value is None else f"{value:,.0f}".replace(",", _THIN)


def money(value: float | None) -> str:
    """US dollars: to the cent, to four digits below ten cents."""
    if value is None:
        return _NONE
    return f"${value:,.4f}" if 0 < value < 0.1 else f"${value:,.2f}"


def duration(seconds: float | None) -> str:
    """Seconds as "42 s", "3 min 12 s" or "5 h 07 min"."""
    if seconds is None:
        return _NONE
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def number(value: object) -> str:
    """A score or weight with three digits; a dash for None."""
    return f"{value:.3f}" if isinstance(value, (int, float)) else _NONE


def moment(seconds: float) -> str:
    """Unix time as a UTC date and minute."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _label(value: object) -> str:
    """A short name of a part of a run file: a plain value, or what a section calls itself."""
    if isinstance(value, Mapping):
        names = ("kind", "type", "name", "path", "id")
        return next((str(value[name]) for name in names if value.get(name)), "")
    return "" if value is None else str(value)


def _render(source: Source) -> str:
    environment = Environment(
        loader=PackageLoader(__package__ or __name__, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (percent, points, count, money, duration, number):
        environment.filters[function.__name__] = function
    environment.filters["mask_runs"] = mask_runs
    summary, arms = source.summary or {}, source.arms
    measure = figures.common_measure(arms)
    shares = measure == EXACT_MATCH
    environment.filters["score"] = percent if shares else number
    environment.filters["change"] = points if shares else signed
    environment.filters["interval"] = share_range if shares else number_range
    style = files(__package__ or __name__).joinpath("report.css").read_text(encoding="utf-8")
    charts = (figures.reward_chart(arms), figures.held_out_chart(arms))
    return environment.get_template("report.html.j2").render(
        style=Markup(style),  # ours, not a model's
        name=summary.get("name")
        or _label(arms[0].config.get("name"))
        or source.folder.resolve().name,
        folder=source.folder,
        facts=_facts(summary, arms),
        verdict=summary.get("verdict") or _verdict(arms),
        caption=summary.get("caption") or "",
        unfinished=[arm for arm in arms if not arm.finished],
        arms=arms,
        measure=measure,
        shares=shares,
        colours=[figures.style(i) for i in range(len(arms))],
        results=_results(arms),
        costs=_costs(arms),
        shipped=_shipped(summary, arms),
        charts=[chart for chart in charts if chart],
        more=figures.more_charts(arms),
        populations=[p for p in map(_population, arms) if p],
        hinted=[h for h in map(hints_of, arms) if h],
        notices=[(arm, event) for arm in arms for event in arm.of_kind("notice")],
        resumes=[(arm, event) for arm in arms for event in arm.of_kind("resumed")],
    )


def _facts(summary: Row, arms: list[Arm]) -> list[tuple[str, str]]:
    """What the header says: method, model, seed, length and time."""

    def each(key: str) -> str:
        return ", ".join(dict.fromkeys(filter(None, (_label(a.config.get(key)) for a in arms))))

    times = [row["time"] for arm in arms for row in (*arm.events, *arm.metrics)]
    when = ""
    if times:
        when = f"{moment(min(times))}, over {duration(max(times) - min(times))}"
    facts = [
        (
            "Method",
            _label(summary.get("baseline")) or each("strategy") or _label(summary.get("strategy")),
        ),
        ("Model", _label(summary.get("model")) or each("model") or each("policy")),
        ("Seed", each("seed") or _label(summary.get("seed"))),
        ("Steps", ", ".join(dict.fromkeys(str(arm.steps) for arm in arms if arm.steps))),
        ("When", when),
    ]
    return [(name, value) for name, value in facts if value]


def _verdict(arms: list[Arm]) -> str:
    """One sentence on the outcome, where the summary has none."""
    clauses: list[str] = []
    for arm in arms:
        before, after = arm.result.get("em_before"), arm.result.get("em")
        evaluated = [event for event in arm.of_kind("evaluated") if event.get("em") is not None]
        who = f"{arm.name}: " if len(arms) > 1 else ""
        score, measure = (percent if arm.measure == EXACT_MATCH else number), arm.measure
        if after is not None and before is not None:
            verb = "rose" if after > before else "fell" if after < before else "went"
            change = f"{verb} from {score(before)} to {score(after)}"
            clauses.append(f"{who}held-out {measure} {change}")
        elif after is not None:
            clauses.append(f"{who}held-out {measure} is {score(after)}")
        elif evaluated:
            step, em = evaluated[-1]["step"], evaluated[-1]["em"]
            clauses.append(f"{who}held-out {measure} was {score(em)} at step {step}")
    if not clauses:
        return "No held-out result yet."
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."


@dataclass(frozen=True, slots=True)
class _Cell:
    """Scores before and after, and the 95 % interval of the latter."""

    before: float | None
    after: float | None
    interval: tuple[float, float] | None = None

    @property
    def change(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before


def _results(arms: list[Arm]) -> dict[str, Any]:
    """The main table: its columns ("" is overall) with sizes, and a row of cells per arm."""
    sizes: dict[str, int | None] = {"": None}
    rows: list[tuple[Arm, dict[str, _Cell]]] = []
    for arm in arms:
        n, by_stratum = sample_sizes(arm)
        sizes[""] = n or sizes[""]
        after, before = arm.result.get("em"), arm.result.get("em_before")
        interval = arm.result.get("em_interval")
        if interval is None and after is not None and n and arm.measure == EXACT_MATCH:
            interval = wilson(after, n)
        cells = {"": _Cell(before, after, interval)}
        if (hard := _hard_cell(arm)) is not None:
            sizes[_HARD] = arm.result.get("accuracy_hard_n")
            cells[_HARD] = hard
        strata_after = arm.result.get("em_by_stratum") or {}
        strata_before = arm.result.get("em_before_by_stratum") or {}
        for stratum in sorted({*strata_after, *strata_before} - {""}):
            sizes[stratum] = by_stratum.get(stratum, sizes.get(stratum))
            cells[stratum] = _Cell(
                stratum_value(strata_before.get(stratum)), stratum_value(strata_after.get(stratum))
            )
        rows.append((arm, cells))
    known = any(
        c.after is not None or c.before is not None for _, row in rows for c in row.values()
    )
    return {"sizes": sizes, "rows": rows if known else [], "none": _Cell(None, None)}


def _hard_cell(arm: Arm) -> _Cell | None:
    """Accuracy on the hard strata together, where the world has any."""
    before, after = arm.result.get("accuracy_hard_before"), arm.result.get("accuracy_hard")
    if before is None and after is None:
        return None
    n = arm.result.get("accuracy_hard_n")
    return _Cell(before, after, wilson(after, n) if after is not None and n else None)


def _costs(arms: list[Arm]) -> list[tuple[str, str, list[str]]]:
    """Rows of the cost table: CSS class, what is counted, and a value per arm."""
    spent = [arm.result.get("policy_rollouts") or {} for arm in arms]
    others = sorted({purpose for row in spent for purpose in row} - set(_PURPOSES))
    names = [purpose for purpose in (*_PURPOSES, *others) if any(purpose in row for row in spent)]
    totals = [sum(row.values()) if row else None for row in spent]
    rows = [("", "Policy rollouts", [count(total) for total in totals])]
    rows += [
        ("part", name, [count(row.get(name, 0 if row else None)) for row in spent])
        for name in names
    ]
    for purpose, what in _shared_purposes(spent).items():
        shares = [
            percent(row.get(purpose, 0) / total) if total else _NONE
            for row, total in zip(spent, totals, strict=True)
        ]
        rows.append(("", f"{what}, share of all rollouts", shares))
    columns = (
        ("Generated tokens", "generated_tokens", count),
        ("LLM calls", "llm_calls", count),
        ("Money", "money", money),
        ("Time", "seconds", duration),
    )
    rows += [("", name, [show(a.result.get(key)) for a in arms]) for name, key, show in columns]
    return [row for row in rows if any(value != _NONE for value in row[2])]


def _shared_purposes(spent: Sequence[Mapping[str, int]]) -> dict[str, str]:
    """The purposes besides training whose share of the rollouts is told, with their names."""
    verify, evolve = (any(row.get(name) for row in spent) for name in ("verify", "evolve"))
    found = {} if evolve and not verify else {"verify": "Verification"}
    return {**found, "evolve": "Evolution"} if evolve else found


def _shipped(summary: Row, arms: list[Arm]) -> Row | None:
    """The instruction to ship: the summary's (its id, text or row), else the one evaluated last."""
    best = summary.get("best_instruction")
    if isinstance(best, Mapping):
        return {"id": "", "born": None, "origin": "", **best}
    rows = [row for arm in arms for row in reversed(arm.instructions)]
    wanted = [best] if best else [arm.best for arm in reversed(arms) if arm.best]
    for row in rows:
        if wanted and wanted[0] in (row["id"], row["text"]):
            return row
    return {"id": "", "born": None, "origin": "", "text": best} if best else None


@dataclass(frozen=True, slots=True)
class _Population:
    """What one arm's instructions went through."""

    arm: Arm
    chart: Chart | None
    members: list[Member]
    rejected: list[tuple[Row, list[Segment]]]
    reasons: list[tuple[str, int]]
    failed: list[tuple[str, int]]
    phases: list[Row]


def _population(arm: Arm) -> _Population | None:
    """None for an arm whose instruction never changes."""
    rejected = arm.of_kind("instruction_rejected")
    failed = outside_phases(arm.events, "proposal_failed")
    if len(arm.instructions) < 2 and not rejected and not failed:
        return None
    fates = lives(arm.events)
    texts = {row["id"]: row.get("text") or "" for row in arm.instructions}
    marked = [
        (event, sentence_diff(texts.get(event.get("parent") or "", ""), event.get("text") or ""))
        for event in rejected
    ]
    return _Population(
        arm,
        figures.population_chart(arm, fates),
        family(arm.instructions, fates, arm.best),
        marked,
        Counter(str(event.get("reason") or "no reason given") for event in rejected).most_common(),
        Counter(str(event.get("reason") or "no reason given") for event in failed).most_common(),
        arm.of_kind("evolution"),
    )
