"""The pair of policy and instruction that a run keeps (`best/best.json`), and the instructions it was chosen from."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from cotune.errors import ConfigError
from cotune.run.json_files import Row, write_json_atomic
from cotune.run.run_dir import RunDir
from cotune.run.scores import EXACT_MATCH
from cotune.utils.text import one_line

FILE = "best.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRecord:
    """The pair that a run keeps, and the evidence for it. None is unknown.

    Attributes:
        em: its score on validation questions, if it was `validated`; with the score's name, its number of questions
            and its 95 % interval.
        step: the steps that the policy was trained for, of the `trained` ones of the whole run.
        weight, observed_steps, observed_rollouts, runner_up, too_close_to_call: the method's evidence for the
            instruction then (`types.Choice`).
        initial_em, initial_interval: the policy's score under the initial instruction, if that is
            another one and was checked.
        replaced: the record of the method's best, if the initial instruction is kept in its place.
    """

    instruction: str
    instruction_id: str = ""
    em: float = 0.0
    step: int = 0
    hint: str = ""
    validated: bool = False
    measure: str = EXACT_MATCH
    n: int | None = None
    interval: tuple[float, float] | None = None
    weight: float | None = None
    observed_steps: int | None = None
    observed_rollouts: int | None = None
    runner_up: str | None = None
    too_close_to_call: bool | None = None
    trained: int | None = None
    initial_em: float | None = None
    initial_interval: tuple[float, float] | None = None
    replaced: "BestRecord | None" = None
    schema_version: Literal[1] = 1

    @property
    def method_best(self) -> "BestRecord":
        """Return the method's best, whether or not the initial instruction is kept in its place."""
        return self.replaced or self

    def write(self, folder: Path) -> None:
        """Replace best.json in a folder."""
        write_json_atomic(folder / FILE, asdict(self))

    def statement(self) -> str:
        """Return which pair is kept, and why, in one or two sentences."""
        of = f" of {self.trained}" if self.trained is not None else ""
        pair = f"the policy of step {self.step}{of} with instruction {self.instruction_id}"
        if self.observed_rollouts is not None:
            steps = _count(self.observed_steps or 0, "step")
            rollouts = _count(self.observed_rollouts, "rollout")
            pair += f" (observed in {steps}, {rollouts}"
            close = f"; too close to {self.runner_up} to call" if self.too_close_to_call else ""
            pair += f"{close if self.runner_up else ''})"
        if not self.validated:
            return f"Kept: {pair}, the last one, not checked: nothing was evaluated on validation"
        text = f"Kept: {pair}, the best on validation with {self.measure} {self.em:.3f}"
        if self.interval is not None:
            text += f" (95 %: {self.interval[0]:.3f} to {self.interval[1]:.3f})"
        if (replaced := self.replaced) is not None:
            return f"{text}; instruction {replaced.instruction_id} scores {replaced.em:.3f} there"
        if self.initial_em is not None:
            text += f"; the initial instruction scores {self.initial_em:.3f} there"
        return text


# Building it takes longer than validating a file.
_RECORD = TypeAdapter(BestRecord)


def read_best(folder: Path) -> BestRecord | None:
    """Read best.json of a folder; None if there is none. Raises ConfigError if it is damaged."""
    path = folder / FILE
    try:
        return _RECORD.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ConfigError(
            f"{path}: cannot be read ({one_line(str(error))}); restore the file, or remove {folder} and "
            "resume the run without what it had kept"
        ) from error


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


@dataclass(frozen=True, slots=True)
class InstructionRow:
    """One instruction of a run.

    The fields that `types.Instruction` has mean the same.

    Attributes:
        weight: in the population after the last step that had it; None before the first.
        observed_rollouts: how many rollouts had been credited to it by then.
        score, parent_score: its verification and its parent's; None if it was not verified.
        pruned: the step at which it left the population; None while it lives.
        best: it is the one that the run reports.
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
    """Return the id of the best instruction so far: the last choice, or else the best of the last population.

    That is by the weight when each was last observed; before any is observed it is the first, the initial instruction.
    """
    members: list[Row] = []
    for event in events:
        if event["kind"] == "best_instruction":
            return event["id"]
        if event["kind"] == "population":
            members = event["members"]
    if not members:
        return None
    observed = [m for m in members if m["observed_rollouts"] and m["observed"] is not None]
    return max(observed, key=lambda member: member["observed"], default=members[0])["id"]
