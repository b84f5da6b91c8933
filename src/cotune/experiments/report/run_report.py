"""The report of a run: result, cost, curves, instructions, hints, rollouts."""

import itertools
import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.text import Text

from cotune.experiments.evaluate.quadrants import quadrant_table, read_quadrants
from cotune.experiments.report.charts import (
    COLOURS,
    Chart,
    Point,
    Series,
    curves_chart,
    line_chart,
    style,
)
from cotune.experiments.report.pages import moment, write_page
from cotune.run.best import InstructionRow, instruction_rows, read_best
from cotune.run.events import EVENTS, TRUNCATED_SHARE, describe_event, truncation_notice
from cotune.run.json_files import Row
from cotune.run.run_dir import RunDir
from cotune.run.scores import EXACT_MATCH, Score, difference_interval, recorded_score, wilson
from cotune.utils.tables import NONE, Cell, Scores, Table, count, duration, money, percent
from cotune.utils.text import command_on


@dataclass(frozen=True)
class Evaluation:
    """An evaluation on held-out questions."""

    score: Score
    rewards: Mapping[str, float]
    """By question; {} if its rollouts are not stored."""

    def gain_interval(self, before: "Evaluation") -> tuple[float, float] | None:
        """Return the 95 % interval of the gain over an earlier one; None if they have not the same questions."""
        if not self.rewards or self.rewards.keys() != before.rewards.keys():
            return None
        return difference_interval([self.rewards[q] - before.rewards[q] for q in self.rewards])


class RecordedRun:
    """A run folder, read, finished or not.

    Attributes:
        instructions: all that it ever had, by birth.
        kept: which pair of policy and instruction is kept, and why; None without one.
        quadrants: the scores of `cotune evaluate --quadrants`; None without them.
        measure: the name of its scores: "exact match" or "mean reward".
    """

    def __init__(self, folder: Path) -> None:
        """Read the folder. Raises ConfigError if it is no run's, or one of its files is broken."""
        self.folder = RunDir.open(folder)
        self.config = self.folder.read_config()
        self.events = self.folder.read_events()
        self.metrics = self.folder.read_metrics()
        self.instructions = instruction_rows(self.folder)
        self.name = self.config.get("name") or folder.resolve().name
        self.summary = self.folder.read_summary() or {}
        self.finished = bool(self.summary)
        self.kept = read_best(self.folder.best_path)
        self.quadrants = read_quadrants(folder)
        measures = [event.get("measure") for event in self.of_kind("evaluated")]
        self.measure = next(filter(None, reversed(measures)), EXACT_MATCH)

    def of_kind(self, kind: str) -> list[Row]:
        return [event for event in self.events if event["kind"] == kind]

    def values(self, key: str) -> list[Point]:
        """Return (step, value) of a metric."""
        return values(self.metrics, key)

    @property
    def course(self) -> list[Row]:
        """The evaluations under the best instruction of their time, each at the step that the policy was trained to."""
        rows = [row for row in self.of_kind("evaluated") if row["when"] in _COURSE]
        return [{**row, "step": row["trained"]} for row in rows]

    @property
    def steps(self) -> int:
        """The last step that has metrics; 0 before the first."""
        return max((row["step"] for row in self.metrics), default=0)

    @property
    def scores(self) -> Scores:
        return Scores(self.measure == EXACT_MATCH)

    @cached_property
    def evaluations(self) -> dict[str, Evaluation]:
        """The evaluations that it has of "before", "plain" and "after"."""
        read = ((when, self._evaluation(when)) for when in ("before", "plain", "after"))
        return {when: evaluation for when, evaluation in read if evaluation is not None}

    def _evaluation(self, when: str) -> Evaluation | None:
        events = [event for event in self.of_kind("evaluated") if event.get("when") == when]
        if not events or events[-1].get("em") is None:
            return None
        rows = self.folder.read_evaluation(when)
        rewards = {row["task"]["id"]: float(row["reward"] or 0.0) for row in rows}
        return Evaluation(recorded_score(events[-1], rows, self.measure), rewards)


def values(rows: Iterable[Row], key: str) -> list[Point]:
    """Return (step, value) of the rows that have a number under `key`, the last one of a step."""
    by_step = {row["step"]: row[key] for row in rows if isinstance(row.get(key), (int, float))}
    return sorted((float(step), float(value)) for step, value in by_step.items())


_COURSE = ("before", "during", "after")
_EVALUATIONS = {
    "before": "before training, initial instruction",
    "plain": "trained, initial instruction",
    "after": "trained, best instruction",
}
_CURVES = {
    "Response length in tokens": "response_tokens_mean",
    "Prompt length in tokens": "prompt_tokens_mean",
    "Share of groups without advantage": "zero_advantage_share",
    "Share of rollouts that were truncated": TRUNCATED_SHARE,
    "Entropy of the policy (nats per token)": "entropy",
    "Hard questions": "p2o/hard",
}


def write_report(folder: Path) -> Path:
    """Write report.html into a run folder, from its files only; return its path.

    Unfinished runs are reported as far as they came. Raises ConfigError: `folder` is no run's, or one of its files
    cannot be read.
    """
    run = RecordedRun(folder)
    evaluated, evaluated_from = some_evaluated(run.folder)
    hints = hint_phases(run.events)
    content: dict[str, Any] = {
        "title": run.name,
        "resume": "" if "library" in run.config else command_on(folder, "resume"),
        "run": run,
        "facts": _facts(run),
        "verdict": _verdict(run),
        "tables": [*map(quadrant_table, filter(None, [run.quadrants])), *results(run)],
        "costs": costs(run),
        "shipped": _shipped(run),
        "kept": run.kept.statement() if run.kept else "",
        "charts": training_charts(run),
        "family": family(run.instructions),
        "rejected": run.of_kind("instruction_rejected"),
        # A run evolves instructions or hints; with hints, the failed proposals are theirs.
        "failed": [] if hints else run.of_kind("proposal_failed"),
        "hints": hints,
        "groups": some_groups(run.folder),
        "evaluated": evaluated,
        "evaluated_from": evaluated_from,
        "most_turns": MOST_TURNS,
        "notices": _notices(run),
    }
    return write_page(folder, "run.html.j2", content)


def _facts(run: RecordedRun) -> list[tuple[str, str]]:
    """Return what the header says was run: method, model, seed, length and time."""
    times = [row["time"] for row in (*run.events, *run.metrics)]
    facts = [
        ("Method", run.config.get("strategy", {}).get("kind")),
        ("Environment", run.config.get("environment", {}).get("kind")),
        ("Model", run.config.get("policy", {}).get("path")),
        ("Proposer", run.summary.get("llm")),
        ("Seed", run.config.get("seed")),
        ("Steps", str(run.steps or "")),
        (
            "When",
            f"{moment(min(times))}, over {duration(max(times) - min(times))}" if times else "",
        ),
    ]
    return [(name, str(value)) for name, value in facts if value not in (None, "")]


def _verdict(run: RecordedRun) -> str:
    """Return one sentence on the outcome."""
    score = run.scores.score
    measure = f"Held-out {run.measure}"
    before = run.evaluations.get("before")
    after = run.evaluations.get("after")
    if before is not None and after is not None:
        ends = after.gain_interval(before)
        unclear = ends is not None and ends[0] <= 0 <= ends[1]
        n = count(after.score.n)
        doubt = f"; {n} questions cannot tell this from no change" if unclear else ""
        return f"{measure} went from {score(before.score.em)} to {score(after.score.em)}{doubt}."
    scored = [row for row in run.course if row.get("em") is not None]
    if not scored:
        return "No held-out result yet."
    step = scored[-1]["step"]
    when = f"at step {step}" if step else "before training"
    return f"{measure} was {score(scored[-1]['em'])} {when}."


def results(run: RecordedRun) -> list[Table]:
    """Return the table of scores by stratum, before and after training; [] if there are none."""
    measured = run.evaluations
    if not measured:
        return []
    form = run.scores
    strata: dict[str, int] = {}
    for each in measured.values():
        strata |= {name: n for name, (_, n) in each.score.by_stratum.items()}
    rows = [
        [
            Cell(_EVALUATIONS[when]),
            form.cell(each.score.em, each.score.interval),
            *(_stratum_cell(form, each.score, name) for name in strata),
        ]
        for when, each in measured.items()
    ]
    if {"before", "after"} <= measured.keys():
        before = measured["before"]
        after = measured["after"]
        points = ", in percentage points" if form.shares else ""
        gain = form.cell(after.score.em - before.score.em, after.gain_interval(before), change=True)
        rows.append([Cell(f"change{points}"), gain, *(Cell("") for _ in strata)])
    sizes = {"Overall": max(each.score.n for each in measured.values()), **strata}
    heads = [Cell(name, f"n\u00a0=\u00a0{count(n)}" if n else "") for name, n in sizes.items()]
    notes = "Small: 95 % intervals over questions. One seed: another may end elsewhere."
    if not run.finished:
        notes = f"Training has not finished. {notes}"
    return [Table([Cell(f"Held-out {run.measure}"), *heads], rows, notes)]


def _stratum_cell(form: Scores, score: Score, name: str) -> Cell:
    mean, n = score.by_stratum.get(name, (None, 0))
    return form.cell(mean, wilson(mean, n) if form.shares and mean is not None and n else None)


def costs(run: RecordedRun) -> list[tuple[str, str]]:
    """Return what is counted, and its value. Evaluation is counted apart: no method pays for it."""
    totals = run.folder.totals()
    spent = {name: n for name, n in totals.rollouts.items() if n and name != "evaluate"}
    paid = sum(spent.values())
    rows = [("Policy rollouts", count(paid or None))]
    rows += [(f"· {name}", f"{count(n)} ({percent(n / paid)})") for name, n in spent.items()]
    rows += [
        ("Rollouts of evaluations, not counted above", count(totals.rollouts["evaluate"] or None)),
        ("Generated tokens", count(sum(totals.generated_tokens.values()) or None)),
        ("LLM calls", count(totals.llm_calls)),
        ("· time of LLM calls", duration(totals.llm_seconds or None)),
        ("Phases without a useful proposal", count(len(run.of_kind("phase_failed")) or None)),
        ("Money", money(totals.money)),
        ("Time", duration(run.folder.seconds_spent() or None)),
    ]
    return [row for row in rows if row[1] != NONE]


def _shipped(run: RecordedRun) -> tuple[str, str] | None:
    """Return the heading and the text of the instruction to ship."""
    for row in run.instructions:
        if row.best:
            born = f"born at step {row.born}" if row.born else "present from the start"
            origin = f" ({row.origin})" if row.origin else ""
            return f"Best instruction: {row.id}, {born}{origin}", row.text
    text = run.kept.instruction if run.kept else run.summary.get("best_instruction")
    return ("Best instruction", text) if text else None


def _notices(run: RecordedRun) -> list[str]:
    """Return resumes with the fields of the run file that changed and how, then all notices.

    Fields that may hold a key are only named: events do not contain their values.
    """
    lines: list[str] = []
    for event in run.of_kind("resumed"):
        line = f"resumed from step {event['from_step']} (attempt {event['attempt']})"
        changed = [
            f"{name} {' → '.join(json.dumps(value, ensure_ascii=False) for value in pair)}"
            if pair is not None
            else f"{name} another value, which is not recorded"
            for name, pair in event["changed"].items()
        ]
        lines.append(f"{line}, with another run file: {'; '.join(changed)}" if changed else line)
    for event in run.events:
        kind = EVENTS.get(event["kind"])
        if kind is not None and kind.level == logging.WARNING:
            # A notice without a text of its own gets the console's.
            text = event.get("text") or Text.from_markup(describe_event(event["kind"], event)).plain
            lines.append(f"step {event['step']}: {text}")
    truncated = ((row["step"], truncation_notice(row)) for row in run.metrics)
    return lines + [f"step {step}: {text}" for step, text in truncated if text][:1]


def training_charts(run: RecordedRun) -> list[Chart]:
    """Draw reward, held-out score, behaviour (INSPO Fig. 2) and zero-advantage share over the steps."""
    names = {key for row in run.metrics for key in row if key.startswith("actions/")}
    # In one turn there is nothing to choose.
    chosen = sorted(names) if names - {"actions/answer", "actions/invalid"} else []
    charts = [
        curves_chart(
            "Training reward per step",
            [(run.name, run.values("reward_mean"))],
            share=run.scores.shares,
            guides=leaders(run.events),
        ),
        _held_out_chart(run),
        curves_chart(
            "Turns per rollout, by action",
            [(name.removeprefix("actions/"), run.values(name)) for name in chosen[:COLOURS]],
        ),
    ]
    charts += [
        curves_chart(title, [(run.name, run.values(key))], share=title.startswith("Share"))
        for title, key in _CURVES.items()
    ]
    return [chart for chart in charts if chart]


def _held_out_chart(run: RecordedRun) -> Chart | None:
    """Draw held-out scores over training, one series per split."""
    by_split: dict[str, list[Row]] = {}
    for row in run.course:
        by_split.setdefault(row["split"], []).append(row)
    curves = [(split, values(rows, "em")) for split, rows in sorted(by_split.items())]
    if not any(x > 0 for _, points in curves for x, _ in points):
        return None  # nothing was trained: before and after would coincide
    series = [Series(split, points, style(i)) for i, (split, points) in enumerate(curves)]
    return line_chart(f"Held-out {run.measure}", series, share=run.scores.shares)


# ---- its instructions


def leaders(events: Iterable[Row]) -> list[tuple[int, str]]:
    """Return (step, id) wherever another instruction begins to lead its population for two steps or more.

    The leader is that which rollouts are most likely drawn under. [] if the instruction never changes.
    """
    led: list[tuple[int, str]] = []
    for event in events:
        if event["kind"] == "population" and event["members"]:
            best = max(event["members"], key=lambda member: member.get("probability") or 0.0)
            led.append((event["step"], best["id"]))
    changes: list[tuple[int, str]] = []
    for (step, name), (_, following) in itertools.pairwise(led):
        # One that leads for a single step has drawn few rollouts.
        if name == following and (not changes or changes[-1][1] != name):
            changes.append((step, name))
    return changes


def family(rows: Sequence[InstructionRow]) -> list[tuple[InstructionRow, int, str]]:
    """Return (instruction, generations below a root, its parent's text) in tree order.

    Each comes before its children; siblings are sorted by birth.
    """
    texts = {row.id: row.text for row in rows}
    children: dict[str | None, list[InstructionRow]] = {}
    for row in sorted(rows, key=lambda row: row.born):
        children.setdefault(row.parent if row.parent in texts else None, []).append(row)

    # A long run's line of descent is longer than Python's recursion may be deep.
    members: list[tuple[InstructionRow, int, str]] = []
    waiting = [(row, 0) for row in reversed(children.get(None, []))]
    while waiting:
        row, depth = waiting.pop()
        members.append((row, depth, texts.get(row.parent or "", "")))
        waiting += [(child, depth + 1) for child in reversed(children.get(row.id, []))]
    return members


# ---- P²O's hints

_PHASE_KINDS = (
    "hint_phase",
    "hint_accepted",
    "hint_rejected",
    "proposal_failed",
    "hint_phase_ended",
)


def hint_phases(events: Iterable[Row]) -> list[dict[str, list[Row]]]:
    """Return the phases of hint evolution; one that was cut off has no end."""
    phases: list[dict[str, list[Row]]] = []
    for event in events:
        kind = event["kind"]
        if kind == "hint_phase":
            phases.append({name: [] for name in _PHASE_KINDS})
        if phases and kind in _PHASE_KINDS:
            phases[-1][kind].append(event)
    return phases


# ---- its rollouts

MOST_GROUPS = 3  # of a step that a page shows
MOST_COLUMNS = 8  # rollouts of a group that it shows
MOST_TURNS = 10  # of a rollout on the page, so that it stays small
_EVALUATED = 10  # rollouts of an evaluation that it shows
_EVALUATED_BEST = 3  # of these


@dataclass(frozen=True)
class Group:
    """The rollouts of one question in one training step, as stored, lowest rewards first."""

    step: int
    rollouts: Sequence[Row]

    @property
    def rewards(self) -> list[float]:
        return [_reward(row) for row in self.rollouts]

    @property
    def mixed(self) -> bool:
        """Rewards differ: only then does the group have a gradient."""
        return self.rewards[0] < self.rewards[-1]

    @property
    def mean(self) -> float:
        return math.fsum(self.rewards) / len(self.rewards)

    @property
    def columns(self) -> Sequence[Row]:
        """The rollouts that a page shows: of many, those with the lowest rewards and with the highest."""
        half = MOST_COLUMNS // 2
        if len(self.rollouts) <= MOST_COLUMNS:
            return self.rollouts
        return [*self.rollouts[:half], *self.rollouts[-half:]]

    @property
    def instructions(self) -> list[str]:
        """The texts that its rollouts were sampled under, without hints."""
        return list(dict.fromkeys(row["sampled"]["instruction"] for row in self.rollouts))


def some_groups(run: RunDir) -> list[Group]:
    """Choose groups of the last stored training step and of the first, those with mixed rewards before others."""
    steps = [step for step, purpose in run.trajectory_files() if purpose == "train"]
    chosen: list[Group] = []
    for step in dict.fromkeys((*steps[-1:], *steps[:1])):
        by_group: dict[int, list[Row]] = {}
        for row in sorted(run.read_trajectories(step, "train"), key=_reward):
            by_group.setdefault(row["group"], []).append(row)
        groups = [Group(step, by_group[number]) for number in sorted(by_group)]
        chosen += sorted(groups, key=lambda group: not group.mixed)[:MOST_GROUPS]
    return chosen


def _reward(row: Row) -> float:
    return float(row["reward"] or 0.0)


def some_evaluated(run: RunDir) -> tuple[list[Row], str]:
    """Choose rollouts of the evaluation after training, else of the newest one; say which they are."""
    files = [file for file in run.trajectory_files() if file[1].startswith("evaluate")]
    if not files:
        return [], ""
    step, purpose = max(files, key=lambda file: (file[1] == "evaluate_after", file))
    rows = sorted(run.read_trajectories(step, purpose), key=_reward)
    chosen = rows
    if len(rows) > _EVALUATED:
        chosen = rows[: _EVALUATED - _EVALUATED_BEST] + rows[-_EVALUATED_BEST:]
    when = purpose.removeprefix("evaluate_")
    events = (event for event in run.read_events() if event["kind"] == "evaluated")
    trained = {(event["step"], event["when"]): event["trained"] for event in events}
    place = "at the end" if when == "after" else f"after step {trained.get((step, when), step)}"
    which = f"{len(chosen)} of the {len(rows)} rollouts of the evaluation {place}"
    return chosen, f"{which}, lowest rewards first."
