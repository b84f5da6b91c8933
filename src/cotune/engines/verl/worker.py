"""The environment and codec of a run in one of veRL's processes, created once."""

import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cotune.config.build import build_rewards, run_environment
from cotune.config.resuming import recorded_config
from cotune.config.run_file import RunConfig
from cotune.policy.codec import HFCodec, check_turns
from cotune.policy.local_policy import context_length, load_architecture, load_codec
from cotune.policy.policy_files import policy_path
from cotune.protocols import Environment, Rewards
from cotune.run.run_dir import RunDir
from cotune.types import Task

SECTION = "cotune"
"""The key of veRL's configuration that holds cotune's settings in every process."""


@dataclass(frozen=True, eq=False)
class Worker:
    """An environment, any reward functions that replace its scoring, and the policy's codec."""

    config: RunConfig
    environment: Environment
    rewards: Rewards | None
    codec: HFCodec
    context_tokens: int | None

    def with_columns(self, task: Task) -> Task:
        """Return the task with its columns, which are not sent between processes."""
        return _tasks(self.environment).get((task.id, task.question), task)


WORKERS: dict[str, Worker] = {}
"""By run folder, what this process has loaded."""


def worker_of(section: Any) -> Worker:
    """Return this process's worker, by the `cotune` section of veRL's configuration."""
    folder = str(section.run_folder)
    if folder not in WORKERS:
        # Relative paths and modules in the run file are resolved from where the run was started.
        working_folder = str(section.working_folder)
        os.chdir(working_folder)
        if working_folder not in sys.path:
            sys.path.insert(0, working_folder)
        WORKERS[folder] = make_worker(recorded_config(RunDir.open(folder)))
    return WORKERS[folder]


def make_worker(config: RunConfig) -> Worker:
    """Load what a process needs; raise ConfigError if something cannot be loaded."""
    codec = load_codec(config.policy)
    environment = run_environment(config, codec)
    check_turns(environment, codec)
    context = context_length(load_architecture(policy_path(config.policy.path)))
    return Worker(config, environment, build_rewards(config.rewards), codec, context)


@lru_cache(4)
def _tasks(environment: Environment) -> dict[tuple[str, str], Task]:
    """Return all tasks that have columns."""
    splits = ("train", "validation", "test")
    return {(t.id, t.question): t for s in splits for t in environment.tasks(s) if t.columns}
