"""The tables of a report: what was run, its result, its cost and its instructions."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotune.experiments.report import figures
from cotune.experiments.report.charts import Chart
from cotune.experiments.report.formats import (
    NONE,
    count,
    duration,
    label,
    moment,
    money,
    number,
    percent,
)
from cotune.experiments.report.hints import outside_phases
from cotune.experiments.report.lineage import Member, Segment, family, lives, sentence_diff
from cotune.experiments.report.reading import Arm, sample_sizes, stratum_value
from cotune.run.json_files import Row
from cotune.run.scores import EXACT_MATCH, wilson

_HARD = "Hard strata"
_MOST_REJECTED = 100  # of which the texts are shown: pages stay small
_PURPOSES = ("train", "verify", "evolve")


def facts(summary: Row, arms: list[Arm]) -> list[tuple[str, str]]:
    """What the header says: method, model, seed, length and time."""

    def each(key: str) -> str:
        return ", ".join(dict.fromkeys(filter(None, (label(a.config.get(key)) for a in arms))))

    times = [row["time"] for arm in arms for row in (*arm.events, *arm.metrics)]
    when = ""
    if times:
        when = f"{moment(min(times))}, over {duration(max(times) - min(times))}"
    facts = [
        (
            "Method",
            label(summary.get("baseline")) or each("strategy") or label(summary.get("strategy")),
        ),
        ("Environment", each("environment")),
        ("Model", label(summary.get("model")) or each("model") or each("policy")),
        ("LLM", label(summary.get("llm"))),
        ("Seed", each("seed") or label(summary.get("seed"))),
        ("Steps", ", ".join(dict.fromkeys(str(arm.steps) for arm in arms if arm.steps))),
        ("When", when),
    ]
    return [(name, value) for name, value in facts if value]


def verdict(arms: list[Arm]) -> str:
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
            last = evaluated[-1]
            when = "before training" if last.get("when") == "before" else f"at step {last['step']}"
            clauses.append(f"{who}held-out {measure} was {score(last['em'])} {when}")
    if not clauses:
        return "No held-out result yet."
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."


@dataclass(frozen=True, slots=True)
class Cell:
    """Scores before and after, and the 95 % interval of the latter."""

    before: float | None
    after: float | None
    interval: tuple[float, float] | None = None

    @property
    def change(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before


def results(arms: list[Arm]) -> dict[str, Any]:
    """The main table: its columns ("" is overall) with sizes, and a row of cells per arm."""
    sizes: dict[str, int | None] = {"": None}
    rows: list[tuple[Arm, dict[str, Cell]]] = []
    for arm in arms:
        n, by_stratum = sample_sizes(arm)
        sizes[""] = n or sizes[""]
        after, before = arm.result.get("em"), arm.result.get("em_before")
        interval = arm.result.get("em_interval")
        if interval is None and after is not None and n and arm.measure == EXACT_MATCH:
            interval = wilson(after, n)
        cells = {"": Cell(before, after, interval)}
        if (hard := _hard_cell(arm)) is not None:
            sizes[_HARD] = arm.result.get("accuracy_hard_n")
            cells[_HARD] = hard
        strata_after = arm.result.get("em_by_stratum") or {}
        strata_before = arm.result.get("em_before_by_stratum") or {}
        for stratum in sorted({*strata_after, *strata_before} - {""}):
            sizes[stratum] = by_stratum.get(stratum, sizes.get(stratum))
            value = stratum_value(strata_after.get(stratum))
            interval = None
            if value is not None and stratum in by_stratum and arm.measure == EXACT_MATCH:
                interval = wilson(value, by_stratum[stratum])
            cells[stratum] = Cell(stratum_value(strata_before.get(stratum)), value, interval)
        rows.append((arm, cells))
    known = any(
        c.after is not None or c.before is not None for _, row in rows for c in row.values()
    )
    return {"sizes": sizes, "rows": rows if known else [], "none": Cell(None, None)}


def _hard_cell(arm: Arm) -> Cell | None:
    """Accuracy on the hard strata together, where the world has any."""
    before, after = arm.result.get("accuracy_hard_before"), arm.result.get("accuracy_hard")
    if before is None and after is None:
        return None
    n = arm.result.get("accuracy_hard_n")
    return Cell(before, after, wilson(after, n) if after is not None and n else None)


def costs(arms: list[Arm]) -> list[tuple[str, str, list[str]]]:
    """Rows of the cost table: CSS class, what is counted, and a value per arm.

    Evaluation is counted apart: no method pays for it.
    """
    by_purpose = [arm.result.get("policy_rollouts") or {} for arm in arms]
    spent = [{k: v for k, v in row.items() if k != "evaluate"} for row in by_purpose]
    evaluated = [row.get("evaluate") for row in by_purpose]
    others = sorted({purpose for row in spent for purpose in row} - set(_PURPOSES))
    names = [purpose for purpose in (*_PURPOSES, *others) if any(row.get(purpose) for row in spent)]
    totals = [sum(row.values()) if row else None for row in spent]
    rows = [("", "Policy rollouts", [count(total) for total in totals])]
    rows += [
        ("part", name, [count(row.get(name, 0 if row else None)) for row in spent])
        for name in names
    ]
    for purpose, what in _shared_purposes(spent).items():
        shares = [
            percent(row.get(purpose, 0) / total) if total else NONE
            for row, total in zip(spent, totals, strict=True)
        ]
        rows.append(("", f"{what}, share of all rollouts", shares))
    rows.append(("", "Rollouts of evaluations, not counted above", list(map(count, evaluated))))
    columns = (
        ("Generated tokens", "generated_tokens", count),
        ("LLM calls", "llm_calls", count),
        ("Money", "money", money),
        ("Time", "seconds", duration),
    )
    rows += [("", name, [show(a.result.get(key)) for a in arms]) for name, key, show in columns]
    return [row for row in rows if any(value != NONE for value in row[2])]


def _shared_purposes(spent: Sequence[Mapping[str, int]]) -> dict[str, str]:
    """The purposes besides training whose share of the rollouts is told, with their names."""
    verify, evolve = (any(row.get(name) for row in spent) for name in ("verify", "evolve"))
    found = {} if evolve and not verify else {"verify": "Verification"}
    return {**found, "evolve": "Evolution"} if evolve else found


def shipped(summary: Row, arms: list[Arm]) -> Row | None:
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
class Population:
    """What one arm's instructions went through."""

    arm: Arm
    chart: Chart | None
    members: list[Member]
    rejected: list[tuple[Row, list[Segment]]]
    reasons: list[tuple[str, int]]
    failed: list[tuple[str, int]]
    phases: list[Row]
    rejected_left: int


def population(arm: Arm) -> Population | None:
    """None for an arm whose instruction never changes."""
    rejected = arm.of_kind("instruction_rejected")
    failed = outside_phases(arm.events, "proposal_failed")
    if len(arm.instructions) < 2 and not rejected and not failed:
        return None
    fates = lives(arm.events)
    texts = {row["id"]: row.get("text") or "" for row in arm.instructions}
    marked = [
        (event, sentence_diff(texts.get(event.get("parent") or "", ""), event.get("text") or ""))
        for event in rejected[-_MOST_REJECTED:]
    ]
    return Population(
        arm,
        figures.population_chart(arm, fates),
        family(arm.instructions, fates, arm.best),
        marked,
        Counter(str(event.get("reason") or "no reason given") for event in rejected).most_common(),
        Counter(str(event.get("reason") or "no reason given") for event in failed).most_common(),
        arm.of_kind("evolution"),
        len(rejected) - len(marked),
    )


def resumed(arm: Arm) -> list[tuple[Row, list[tuple[str, str]]]]:
    """Each resume, with the fields of the run file that changed and how.

    Fields that may hold a key are named without their values, which no event has.
    """
    return [
        (event, [(name, _changed(pair)) for name, pair in (event.get("changed") or {}).items()])
        for event in arm.of_kind("resumed")
    ]


def _changed(pair: Any) -> str:
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        return "another value, which is not recorded"
    was, now = (json.dumps(value, ensure_ascii=False) for value in pair)
    return f"{was} → {now}"
