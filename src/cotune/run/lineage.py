"""The instructions of a run folder: the origin, scores and fate of each."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cotune.run.best import read_best
from cotune.run.json_files import Row
from cotune.run.run_dir import RunDir


@dataclass(frozen=True, slots=True)
class InstructionRow:
    """One instruction of a run.

    Attributes:
        id: "i0" is the initial one; then by birth.
        parent: id of the instruction that it was derived from; None for the initial one.
        origin: "initial", "rewrite" or the kind of proposer that wrote it.
        born: the step at which it joined; 0 at the start.
        weight: in the population after the last step that had it; None before the first.
        observed_rollouts: how many rollouts had been credited to it by then.
        score, parent_score: its verification and its parent's; None if it was not verified.
        pruned: the step at which it left the population; None while it lives.
        best: it is the one that the run reports.
        critique: what its author found wrong with its parent; "" for nothing.
        text: the instruction.
    """

    id: str
    parent: str | None
    origin: str
    born: int
    weight: float | None
    observed_rollouts: int
    score: float | None
    parent_score: float | None
    pruned: int | None
    best: bool
    critique: str
    text: str


def instruction_rows(run: RunDir) -> list[InstructionRow]:
    """Return all instructions that a run ever had, by birth; [] before the first.

    A run whose instruction does not evolve has one, known once it keeps a best policy.
    """
    events = run.read_events()
    kept_pair = read_best(run.best_path)
    best = best_id(events) if kept_pair is None else kept_pair.instruction_id
    populations = (event["members"] for event in events if event["kind"] == "population")
    members = {member["id"]: member for population in populations for member in population}
    pruned = {row["id"]: row for row in events if row["kind"] == "instruction_pruned"}
    rows: list[Mapping[str, Any]] = [row for row in events if row["kind"] == "instruction_born"]
    if not rows and kept_pair is not None:
        rows = [{"id": best, "text": kept_pair.instruction, "origin": "initial"}]
    return [
        InstructionRow(
            id=row["id"],
            parent=row.get("parent"),
            origin=row.get("origin") or "",
            born=int(row.get("born") or 0),
            weight=members.get(row["id"], pruned.get(row["id"], {})).get("weight"),
            observed_rollouts=int(members.get(row["id"], {}).get("observed_rollouts") or 0),
            score=row.get("score"),
            parent_score=row.get("parent_score"),
            pruned=pruned[row["id"]]["step"] if row["id"] in pruned else None,
            best=row["id"] == best,
            critique=row.get("critique") or "",
            text=row["text"],
        )
        for row in rows
    ]


def best_id(events: Iterable[Row]) -> str | None:
    """Return the id of the best instruction so far: the last choice, or else the heaviest of the last population."""
    best: str | None = None
    for event in events:
        if event["kind"] == "best_instruction":
            return event["id"]
        if event["kind"] == "population":
            best = best_member(event["members"])
    return best


def best_member(members: Iterable[Row]) -> str | None:
    """Return the id of the best in a "population" event: by the weight when each was last observed.

    Before any is observed it is the first, the initial instruction.
    """
    population = list(members)
    if not population:
        return None
    observed = [m for m in population if m["observed_rollouts"] and m["observed"] is not None]
    return max(observed, key=lambda member: member["observed"], default=population[0])["id"]
