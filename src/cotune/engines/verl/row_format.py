"""The JSON exchanged between the trainer's process and the agent loops, in columns of a row."""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from cotune.types import Assignment, Prompt, Sampling, StopReason, Task, Trajectory, Turn

ASSIGNMENTS = "cotune_assignments"
"""Column of a prompt's row: the prompts that each session is sampled under and trained on."""
SAMPLING = "cotune_sampling"
ROW = "cotune_row"
"""Column of a prompt's row: the number of its first session within the rollout call."""
RESULT = "cotune_result"
"""Extra field of a session: the trajectory, or the error."""


def assignments_text(assignments: Sequence[Assignment]) -> str:
    """Serialize the assignments of one row, all of one task; `assignment_at` reads them."""
    task = replace(assignments[0].task, columns={})
    sessions = [
        [asdict(a.sampled), asdict(a.trained), a.instruction_id, a.group] for a in assignments
    ]
    return json.dumps({"task": asdict(task), "sessions": sessions})


def assignment_at(text: str, session: int) -> tuple[Assignment, int]:
    """Return a session's assignment, whose task has no columns, and the row's session count."""
    fields_of_row = json.loads(text)
    task = fields_of_row["task"]
    task["answers"] = tuple(task["answers"])
    task["context"] = tuple((role, content) for role, content in task["context"])
    sampled, trained, instruction_id, group = fields_of_row["sessions"][session]
    assignment = Assignment(
        Task(**task), Prompt(**sampled), Prompt(**trained), instruction_id, group
    )
    return assignment, len(fields_of_row["sessions"])


def sampling_text(sampling: Sampling) -> str:
    return json.dumps(asdict(sampling))


def sampling_from(text: str) -> Sampling:
    values = json.loads(text)
    return Sampling(**values | {"stop": tuple(values["stop"])})


def result_text(trajectory: Trajectory) -> str:
    """Serialize a finished rollout without its assignment, to the last digit."""
    row = {field.name: getattr(trajectory, field.name) for field in fields(trajectory)}
    del row["extra"]  # any objects; only TRL's table of completions shows them
    row["assignment"] = trajectory.task.question  # which an environment may have changed
    row["turns"] = [turn.row() for turn in trajectory.turns]
    row |= {"parts": dict(trajectory.parts), "logged": dict(trajectory.logged)}
    return json.dumps(row, default=lambda number: number.item())  # of numpy or torch


def failure_text(error: Exception) -> str:
    return json.dumps({"failed": type(error).__name__, "message": str(error)})


def result_from(text: str, assignment: Assignment) -> Trajectory | tuple[str, str]:
    """Parse a rollout, or the name and message of an exception."""
    row: dict[str, Any] = json.loads(text)
    if "failed" in row:
        return row["failed"], row["message"]
    row = {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}
    task = replace(assignment.task, question=row.pop("assignment"))
    row["turns"] = tuple(Turn(**turn) for turn in row["turns"])
    row["stop"] = StopReason(row["stop"])
    return Trajectory(replace(assignment, task=task), **row)
