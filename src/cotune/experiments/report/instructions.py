"""A run's instructions and hints in a report: a family tree, what each one changed, which one led; hard questions."""

import difflib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from cotune.experiments.report.charts import (
    WIDE,
    Chart,
    Point,
    Series,
    curves_chart,
    line_chart,
    style,
    thin,
)  # fmt: skip
from cotune.experiments.report.recorded_run import RecordedRun, values
from cotune.run.json_files import Row
from cotune.run.lineage import InstructionRow

Segment = tuple[str, str]
"""("same" | "new" | "gone", text)."""
Phase = dict[str, list[Row]]
"""The events of a phase of hint evolution, by kind."""

_PHASE_KINDS = (
    "hint_phase",
    "hint_accepted",
    "hint_rejected",
    "proposal_failed",
    "hint_phase_ended",
)
_HARD = {
    "hard": "hard",
    "newly_hard": "newly hard",
    "graduated": "graduated",
    "solved_by_hint": "graduated under hints",
}

# A sentence ends at . ! or ? before white space (not after a list's number) or at a line's end.
_SENTENCE = re.compile(r"\s*\S.*?(?:(?<!\d)[.!?]+[\"')\]]*(?=\s)|(?=\n)|\Z)", re.DOTALL)


def sentence_diff(parent: str, child: str) -> list[Segment]:
    """Return `child` as segments that its parent has or lacks, with the parent's that are gone.

    The "same" and "new" segments joined are `child` without trailing white space. Nothing is marked if the parent
    is empty.
    """
    if not parent.strip():
        return [("same", child.rstrip())]
    old = _SENTENCE.findall(parent.rstrip())
    new = _SENTENCE.findall(child.rstrip())
    matcher = difflib.SequenceMatcher(
        None, [s.strip() for s in old], [s.strip() for s in new], autojunk=False
    )
    segments: list[Segment] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        text = "".join(new[j1:j2])
        if tag in ("replace", "delete"):
            segments.append(("gone", "".join(old[i1:i2])))
        if tag == "equal":
            segments.append(("same", text))
        elif tag != "delete":
            space = len(text) - len(text.lstrip())
            segments += [("same", text[:space]), ("new", text[space:])]
    return segments


def reasons(events: Iterable[Row]) -> list[tuple[str, int]]:
    """Count the reasons of rejections or failures, the most frequent first."""
    return Counter(event["reason"] for event in events).most_common()


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


def population(run: RecordedRun) -> dict[str, Any] | None:
    """Read the history of a run's instructions; None if its instruction never changes."""
    rejected = run.of_kind("instruction_rejected")
    failed = run.of_kind("proposal_failed")
    if len(run.instructions) < 2 and not rejected and not failed:
        return None
    return {
        "chart": _weights_chart(run),
        "members": family(run.instructions),
        "texts": {row.id: row.text for row in run.instructions},
        "rejected": rejected,
        "failed": failed,
    }


def weights(events: Iterable[Row]) -> dict[str, list[Point]]:
    """Return (step, weight) of each instruction at the steps from which its weight is known."""
    curves: dict[str, list[Point]] = {}
    for event in events:
        for member in event["members"] if event["kind"] == "population" else ():
            weight = member["weight"]
            # Weight 0 means nothing for an initial rewrite that has no rollouts yet.
            if weight is not None and (member["observed_rollouts"] or weight):
                curves.setdefault(member["id"], []).append((event["step"], weight))
    return curves


def _weights_chart(run: RecordedRun) -> Chart | None:
    """Draw each instruction's weight over its life: survivors in colour, pruned ones in grey."""
    curves = weights(run.events)
    alive = [row for row in run.instructions if row.pruned is None and row.id in curves]
    alive.sort(key=lambda row: -curves[row.id][-1][1])
    colours = {row.id: style(i) for i, row in enumerate(alive)}
    best = {row.id for row in alive if row.best}
    series = [
        Series(name, thin(curves[name]), colours.get(name, "muted"), strong=name in best)
        for name in (*(curves.keys() - colours), *colours)
    ]
    note = "Thick: the best. Grey: pruned."
    return line_chart("Weight of each instruction", series, note=note, size=WIDE)


# ---- P²O's hints


def hints_of(run: RecordedRun) -> dict[str, Any] | None:
    """Read the charts and phases of a run's hints; None if it mined no hard questions."""
    phases = hint_phases(run.events)
    if not run.of_kind("hard_samples") and not phases:
        return None
    return {"charts": hint_charts(run), "phases": phases}


def hint_phases(events: Iterable[Row]) -> list[Phase]:
    """Return the phases of hint evolution; one that was cut off has no end."""
    phases: list[Phase] = []
    for event in events:
        kind = event["kind"]
        if kind == "hint_phase":
            phases.append({name: [] for name in _PHASE_KINDS})
        if phases and kind in _PHASE_KINDS:
            phases[-1][kind].append(event)
    return phases


def hint_charts(run: RecordedRun) -> list[Chart]:
    """Draw a run's hard questions and masked tokens."""
    hard = [{**event, "step": event["epoch"] + 1} for event in run.of_kind("hard_samples")]
    counts = [
        Series(name, values(hard, key), style(i)) for i, (key, name) in enumerate(_HARD.items())
    ]
    hinted = [("with hints", "_hinted"), ("without", "_plain")]
    groups = [(name, run.values(f"zero_advantage_share{key}")) for name, key in hinted]
    masked = [("masked", run.values("p2o/ratio_masked_share"))]
    charts = (
        line_chart("Hard questions by epoch", counts, x_label="epoch"),
        curves_chart("Groups without advantage, at steps with hints", groups, share=True),
        curves_chart("Share of masked tokens of hinted rollouts", masked, share=True),
    )
    return [chart for chart in charts if chart]
