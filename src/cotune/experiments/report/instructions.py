"""A run's instructions in a report: their family tree, what each one changed, and their weights."""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cotune.experiments.report.charts import Chart, Series, line_chart, style, thinned
from cotune.experiments.report.recorded_run import RecordedRun
from cotune.run.json_files import Row

Segment = tuple[str, str]
"""("same" | "new" | "gone", text)."""

_MOST_REJECTED = 100  # texts of rejected proposals that a page shows, so that it stays small
# A sentence ends at . ! or ? before white space (not after a list's number) or at a line's end.
_SENTENCE = re.compile(r"\s*\S.*?(?:(?<!\d)[.!?]+[\"')\]]*(?=\s)|(?=\n)|\Z)", re.DOTALL)


def sentences(text: str) -> list[str]:
    """Cut `text` into sentences and lines; joined they are `text` without trailing white space."""
    return _SENTENCE.findall(text.rstrip())


def sentence_diff(parent: str, child: str) -> list[Segment]:
    """Return `child` as segments that its parent has or lacks, with the parent's that are gone.

    The "same" and "new" segments joined are `child` without trailing white space.
    """
    old, new = sentences(parent), sentences(child)
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


@dataclass(slots=True)
class Life:
    """The history of one instruction.

    Attributes:
        weights: (step, weight) at each step of its life from which its weight is known.
        observed: number of rollouts that its weight is based on.
        pruned: the step at which it was dropped; None while it is in use.
    """

    weights: list[tuple[float, float]] = field(default_factory=list)
    observed: int | None = None
    pruned: int | None = None


def lives(events: Sequence[Row]) -> dict[str, Life]:
    """Read the life of every instruction from "population" and "instruction_pruned" events."""
    found: dict[str, Life] = {}
    for event in events:
        if event["kind"] == "population":
            for member in event["members"]:
                life = found.setdefault(member["id"], Life())
                weight, life.observed = member["weight"], member["observed_rollouts"]
                # Weight 0 means nothing for an initial rewrite that has no rollouts yet.
                if weight is not None and (life.observed or weight):
                    life.weights.append((event["step"], weight))
        elif event["kind"] == "instruction_pruned":
            found.setdefault(event["id"], Life()).pruned = event["step"]
    return found


@dataclass(frozen=True, slots=True)
class Member:
    """One node of the family tree, ready to be shown.

    Attributes:
        row: its line of instructions.jsonl.
        depth: generations below a root.
        segments: its text, marked against its parent's.
        best: whether it is the run's best.
    """

    row: Row
    depth: int
    life: Life
    segments: list[Segment]
    best: bool


def family(rows: Sequence[Row], lives: Mapping[str, Life], best: str | None) -> list[Member]:
    """Return the instructions in tree order: each before its children, siblings by birth."""
    by_id = {row["id"]: row for row in rows}
    children: dict[str | None, list[Row]] = {}
    for row in by_id.values():
        parent = row["parent"]
        children.setdefault(parent if parent in by_id else None, []).append(row)

    def walk() -> Iterator[tuple[Row, int]]:
        waiting = [(row, 0) for row in reversed(children.get(None, []))]
        while waiting:
            row, depth = waiting.pop()
            yield row, depth
            born = sorted(children.get(row["id"], []), key=lambda r: r["born"])
            waiting += [(child, depth + 1) for child in reversed(born)]

    def member(row: Row, depth: int) -> Member:
        parent, text = by_id.get(row["parent"]), row["text"]
        segments = sentence_diff(parent["text"], text) if parent else [("same", text)]
        return Member(row, depth, lives.get(row["id"], Life()), segments, row["id"] == best)

    return [member(row, depth) for row, depth in walk()]


def population(run: RecordedRun, failed: Sequence[Row]) -> dict[str, Any] | None:
    """Read the history of a run's instructions; None if its instruction never changes.

    Args:
        failed: its "proposal_failed" events that concern instructions.
    """
    rejected = run.of_kind("instruction_rejected")
    if len(run.instructions) < 2 and not rejected and not failed:
        return None
    known = lives(run.events)
    texts = {row["id"]: row["text"] for row in run.instructions}
    marked = [
        (event, sentence_diff(texts.get(event["parent"], ""), event["text"]))
        for event in rejected[-_MOST_REJECTED:]
    ]
    return {
        "chart": _weights_chart(run, known),
        "members": family(run.instructions, known, run.best),
        "rejected": marked,
        "rejected_left": len(rejected) - len(marked),
        "reasons": reasons(rejected),
        "failed": reasons(failed),
        "phases": run.of_kind("evolution"),
    }


def _weights_chart(run: RecordedRun, lives: dict[str, Life]) -> Chart | None:
    """Draw each instruction's weight over its life: survivors in colour, pruned ones in grey."""
    known = {name: life for name, life in lives.items() if life.weights}
    alive = [name for name, life in known.items() if life.pruned is None]
    alive.sort(key=lambda name: -known[name].weights[-1][1])
    colours = {name: style(i) for i, name in enumerate(alive)}
    later = {row["id"] for row in run.instructions if row["born"]}
    series = [
        Series(
            name,
            thinned(life.weights),
            colours.get(name, "muted"),
            label=name if name in colours else "",
            born=name in later,
            died=life.pruned is not None,
            strong=name == run.best,
        )
        for name, life in known.items()
    ]
    phases = [event["step"] for event in run.of_kind("evolution")]
    note = "○ born, × pruned. Colour: alive at the end, labelled; thick: the best. Grey: pruned."
    if phases:
        note += " Dotted: evolution phases."
    return line_chart("Weight of each instruction", series, note=note, legend=False, guides=phases)
