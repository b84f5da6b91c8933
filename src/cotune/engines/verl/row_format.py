"""The JSON exchanged between the trainer's process and the agent loops, in columns of a row."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from cotune.run.json_files import Row
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
    given = json.loads(text)
    task = given["task"]
    task["answers"] = tuple(task["answers"])
    task["context"] = tuple((role, content) for role, content in task["context"])
    sampled, trained, instruction_id, group = given["sessions"][session]
    found = Assignment(Task(**task), Prompt(**sampled), Prompt(**trained), instruction_id, group)
    return found, len(given["sessions"])


def sampling_text(sampling: Sampling) -> str:
    return json.dumps(asdict(sampling))


def sampling_from(text: str) -> Sampling:
    given = json.loads(text)
    return Sampling(**given | {"stop": tuple(given["stop"])})


def result_text(trajectory: Trajectory) -> str:
    """Serialize a finished rollout without its assignment."""
    return json.dumps({**_trajectory_fields(trajectory), "logged": dict(trajectory.logged)})


def failure_text(error: Exception) -> str:
    return json.dumps({"failed": type(error).__name__, "message": str(error)})


def result_from(text: str, assignment: Assignment) -> Trajectory | tuple[str, str]:
    """Parse a rollout, or the name and message of an exception."""
    given: dict[str, Any] = json.loads(text)
    if "failed" in given:
        return given["failed"], given["message"]
    return replace(_trajectory_from(given, assignment), logged=given["logged"])


def _trajectory_fields(trajectory: Trajectory) -> Row:
    """Return a rollout without its assignment as exact JSON, for `_trajectory_from`."""
    same = trajectory.prompt_ids == trajectory.sampled_prompt_ids
    return {
        "question": trajectory.task.question,
        "sampled_prompt_ids": _ints(trajectory.sampled_prompt_ids),
        "prompt_ids": None if same else _ints(trajectory.prompt_ids),
        "completion_ids": _ints(trajectory.completion_ids),
        "mask": _ints(trajectory.mask),
        "logprobs": [float(x) for x in trajectory.logprobs],
        "turns": [[t.text, t.observation, t.action, t.error] for t in trajectory.turns],
        "stop": str(trajectory.stop),
        "answer": trajectory.answer,
        "reward": float(trajectory.reward),
        "parts": {name: float(value) for name, value in trajectory.parts.items()},
        "feedback": trajectory.feedback,
        "row": trajectory.row,
    }


def _trajectory_from(fields: Row, assignment: Assignment) -> Trajectory:
    """Return the rollout of an assignment that `_trajectory_fields` wrote."""
    asked = fields.get("question", assignment.task.question)  # an environment may have changed it
    assignment = replace(assignment, task=replace(assignment.task, question=asked))
    sampled = tuple[int, ...](fields["sampled_prompt_ids"])
    return Trajectory(
        assignment,
        sampled_prompt_ids=sampled,
        prompt_ids=sampled if fields["prompt_ids"] is None else tuple(fields["prompt_ids"]),
        completion_ids=tuple(fields["completion_ids"]),
        mask=tuple(fields["mask"]),
        logprobs=tuple(fields["logprobs"]),
        turns=tuple(Turn(*turn) for turn in fields["turns"]),
        stop=StopReason(fields["stop"]),
        answer=fields["answer"],
        reward=fields["reward"],
        parts=fields["parts"],
        feedback=fields.get("feedback", ""),
        row=fields["row"],
    )


def _ints(values: Sequence[Any]) -> list[int]:
    return [int(x) for x in values]
