"""The family tree of a run's instructions, and what each one changed."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cotune.run.json_files import Row

Segment = tuple[str, str]
"""("same" | "new" | "gone", text)."""

# A sentence ends at . ! or ? before white space (not after a list's number) or at a line's end.
_SENTENCE = re.compile(r"\s*\S.*?(?:(?<!\d)[.!?]+[\"')\]]*(?=\s)|(?=\n)|\Z)", re.DOTALL)


def sentences(text: str) -> list[str]:
    """`text` cut into sentences and lines; joined they are `text` but for trailing white space."""
    return _SENTENCE.findall(text.rstrip())


def sentence_diff(parent: str, child: str) -> list[Segment]:
    """`child` as segments that its parent has or has not, with the parent's that are gone.

    The "same" and "new" segments joined are `child` but for trailing white space.
    """
    old, new = sentences(parent), sentences(child)
    matcher = difflib.SequenceMatcher(
        None, [s.strip() for s in old], [s.strip() for s in new], autojunk=False
    )
    segments: list[Segment] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag in ("replace", "delete"):
            segments.append(("gone", "".join(old[i1:i2])))
        if tag == "equal":
            segments.append(("same", "".join(new[j1:j2])))
        elif tag != "delete":
            text = "".join(new[j1:j2])
            space = len(text) - len(text.lstrip())
            segments += [("same", text[:space]), ("new", text[space:])]
    return segments


@dataclass(slots=True)
class Life:
    """What became of one instruction.

    Attributes:
        weights: (step, weight) at each step of its life from which its weight is known.
        observed: rollouts its weight rests on.
        pruned: the step it was dropped at; None while it lives.
    """

    weights: list[tuple[float, float]] = field(default_factory=list)
    observed: int | None = None
    pruned: int | None = None


def lives(events: Sequence[Row]) -> dict[str, Life]:
    """The life of every instruction, from "population" and "instruction_pruned" events."""
    found: dict[str, Life] = {}
    for event in events:
        if event["kind"] == "population":
            for member in event.get("members") or ():
                life = found.setdefault(member["id"], Life())
                if _is_known(member):
                    life.weights.append((event["step"], member["weight"]))
                life.observed = member.get("observed_rollouts", life.observed)
        elif event["kind"] == "instruction_pruned":
            found.setdefault(event["id"], Life()).pruned = event["step"]
    return found


def _is_known(member: Row) -> bool:
    """Whether a weight rests on something: rollouts, or what it was given at its birth.

    An initial rewrite that no rollout was credited to yet has the weight 0, which is no finding.
    """
    weight, observed = member.get("weight"), member.get("observed_rollouts")
    return weight is not None and (observed != 0 or weight != 0)


@dataclass(frozen=True, slots=True)
class Member:
    """One node of the family tree, ready to be shown.

    Attributes:
        row: its line of instructions.jsonl.
        depth: generations below a root.
        life: what became of it.
        segments: its text, marked against its parent's.
        best: whether it is the run's best.
    """

    row: Row
    depth: int
    life: Life
    segments: list[Segment]
    best: bool


def family(rows: Sequence[Row], lives: Mapping[str, Life], best: str | None) -> list[Member]:
    """The instructions in tree order: each before its children, siblings by birth."""
    by_id = {row["id"]: row for row in rows}
    children: dict[str | None, list[Row]] = {}
    for row in by_id.values():
        parent = row.get("parent")
        children.setdefault(parent if parent in by_id else None, []).append(row)

    def walk() -> Iterator[tuple[Row, int]]:
        waiting = [(row, 0) for row in reversed(children.get(None, []))]
        while waiting:
            row, depth = waiting.pop()
            yield row, depth
            born = sorted(children.get(row["id"], []), key=lambda r: r.get("born") or 0)
            waiting += [(child, depth + 1) for child in reversed(born)]

    members: list[Member] = []
    for row, depth in walk():
        parent = by_id.get(row.get("parent") or "")
        text = row.get("text") or ""
        segments = sentence_diff(parent.get("text") or "", text) if parent else [("same", text)]
        life = lives.get(row["id"], Life())
        members.append(Member(row, depth, life, segments, row["id"] == best))
    return members
