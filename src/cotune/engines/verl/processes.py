"""What each of veRL's processes has, the environment and codec of a run; and the rows that travel between them."""

import os
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import Dataset

from cotune.config.build import build_rewards, run_environment
from cotune.config.resuming import recorded_config
from cotune.config.run_file import RunConfig
from cotune.data.splits import SPLITS
from cotune.errors import CotuneError
from cotune.policy.codec import HFCodec, check_turns
from cotune.policy.local_policy import context_length, load_architecture, load_codec
from cotune.policy.policy_files import policy_path
from cotune.protocols import Environment, Rewards
from cotune.rollout.task_order import TaskOrder
from cotune.run.run_dir import RunDir
from cotune.types import Assignment, Sampling, Task, Trajectory

SECTION = "cotune"
"""The key of veRL's configuration that holds cotune's settings in every process."""


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """What each process of a run loads: environment, codec, and any reward functions that replace its scoring."""

    config: RunConfig
    environment: Environment
    rewards: Rewards | None
    codec: HFCodec
    context_tokens: int | None

    def with_columns(self, task: Task) -> Task:
        """Return the task with its columns, which are not sent between processes."""
        return self._tasks.get((task.id, task.question), task)

    @cached_property
    def _tasks(self) -> dict[tuple[str, str], Task]:
        tasks = (task for split in SPLITS for task in self.environment.tasks(split))
        return {(task.id, task.question): task for task in tasks if task.columns}


LOADED_RUNS: dict[str, LoadedRun] = {}
"""By run folder, what this process has loaded."""


def get_loaded_run(section: Any) -> LoadedRun:
    """Return what this process has loaded, by the `cotune` section of veRL's configuration."""
    folder = str(section.run_folder)
    if folder not in LOADED_RUNS:
        # Relative paths and modules in the run file are resolved from where the run was started.
        working_folder = str(section.working_folder)
        os.chdir(working_folder)
        if working_folder not in sys.path:
            sys.path.insert(0, working_folder)
        LOADED_RUNS[folder] = load_run(recorded_config(RunDir.open(folder)))
    return LOADED_RUNS[folder]


def load_run(config: RunConfig) -> LoadedRun:
    """Load what a process needs; raise ConfigError if something cannot be loaded."""
    codec = load_codec(config.policy)
    environment = run_environment(config, codec)
    check_turns(environment, codec)
    context = context_length(load_architecture(policy_path(config.policy.path)))
    return LoadedRun(config, environment, build_rewards(config.rewards), codec, context)


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
        run = get_loaded_run(config[SECTION])
        training = run.config.training
        tasks = run.environment.tasks("train")
        self.order = TaskOrder(tasks, training.questions_per_step, run.config.seed)
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
