"""The objects exchanged between the trainer's process and the agent loops, in columns of a prompt's row."""

from dataclasses import dataclass, replace

from cotune.errors import CotuneError
from cotune.types import Assignment, Sampling, Trajectory

ROW = "cotune_row"
"""Column of a prompt's row: a `PromptRow`."""
RESULT = "cotune_result"
"""Extra field of a session: a `SessionResult`."""


@dataclass(frozen=True)
class PromptRow:
    """What the sessions of a prompt's row are to do.

    Attributes:
        assignments: the prompts that each session is sampled under and trained on; of one task.
        sampling: parameters of all sessions.
        first: the number of the first session within the rollout call.
    """

    assignments: tuple[Assignment, ...]
    sampling: Sampling
    first: int


class SessionResult:
    """What became of a session. TransferQueue would turn a dataclass into a dict.

    Args:
        outcome: the trajectory, or the error.
    """

    def __init__(self, outcome: Trajectory | CotuneError) -> None:
        self.outcome = outcome


def without_columns(assignment: Assignment) -> Assignment:
    """Return an assignment whose task has no columns, which may be large; each process has them itself."""
    return replace(assignment, task=replace(assignment.task, columns={}))
