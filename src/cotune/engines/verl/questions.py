"""The data set for veRL's loader: one row per question of every step, in training order."""

from typing import Any

import torch
from torch.utils.data import Dataset

from cotune.engines.verl.worker import SECTION, worker_of
from cotune.rollout.task_order import TaskOrder


class Questions(Dataset[dict[str, Any]]):
    """Task ids; the trainer sends the questions and sampling parameters to the agent loops.

    veRL creates it from `data.custom_cls`, in the trainer's process.

    Args:
        data_files, tokenizer, processor, max_samples: not used.
        config: veRL's `data` section; `config.cotune` is ours.
    """

    def __init__(
        self,
        data_files: Any = None,
        tokenizer: Any = None,
        processor: Any = None,
        config: Any = None,
        max_samples: int = -1,
        **_: Any,
    ) -> None:
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
