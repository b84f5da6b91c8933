"""The rows of veRL's data loader, and what they carry between the trainer's process and the agent loops."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import Dataset

from cotune.engines.verl.worker import SECTION, worker_of
from cotune.errors import CotuneError
from cotune.rollout.task_order import TaskOrder
from cotune.types import Assignment, Sampling, Trajectory

ROW = "cotune_row"  # column of a prompt's row: a `PromptRow`
RESULT = "cotune_result"  # extra field of a session: a `SessionResult`


@dataclass(frozen=True)
class PromptRow:
    """What the sessions of a prompt's row are to do, of which `first` is the first one's number in the rollout call."""

    assignments: tuple[Assignment, ...]
    sampling: Sampling
    first: int


class SessionResult:
    """What became of a session: the trajectory, or the error. TransferQueue would turn a dataclass into a dict."""

    def __init__(self, outcome: Trajectory | CotuneError) -> None:
        self.outcome = outcome


def without_columns(assignment: Assignment) -> Assignment:
    """Return an assignment whose task has no columns, which may be large; each process has them itself."""
    return replace(assignment, task=replace(assignment.task, columns={}))


class Questions(Dataset[dict[str, Any]]):
    """Task ids, one row per question of every step, in training order; the trainer sends the rest to the agent loops.

    veRL creates it from `data.custom_cls`, in the trainer's process, with its `data` section, where `cotune` is ours.
    """

    def __init__(self, *_: Any, config: Any, **__: Any) -> None:
        worker = worker_of(config[SECTION])
        training = worker.config.training
        self.order = TaskOrder(
            worker.environment.tasks("train"), training.questions_per_step, worker.config.seed
        )
        self._rows = training.steps * training.questions_per_step

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, position: int) -> dict[str, Any]:
        return question_row(self.order.at(position), position)


def question_row(task_id: str, index: int) -> dict[str, Any]:
    """Return a row as veRL's loader and agent loops expect it; the prompt itself is not in it."""
    return {
        "dummy_tensor": torch.tensor([0], dtype=torch.uint8),  # veRL stacks at least one
        "raw_prompt": [{"role": "user", "content": task_id}],
        "index": index,
        "data_source": SECTION,
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": index},
        "task_id": task_id,
    }
