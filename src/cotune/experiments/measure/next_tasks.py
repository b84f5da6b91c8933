"""Train further tasks after a run, each from the policy, and the instruction, that the one before has left."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotune.config.overrides import merge
from cotune.config.run_file import RunConfig, dump_config, parse_config
from cotune.experiments.chains import Chain
from cotune.run.json_files import Row

Tasks = Mapping[str, Mapping[str, Any]]
"""By name, the fields of a run file in which a task differs from the run before it."""


class NextTasks(Chain):
    """Tasks that are trained one after the other.

    Each starts from the best policy of the one before; if its method evolves the instruction, also from the best
    instruction, unless it has one of its own. All pay as many rollouts, whatever their method verifies.

    Args:
        config: the run file that they change.
        start: the policy and the instruction of the first one; None for those of its run file.
        tasks: what they change.
        folder: of their run folders.
    """

    def __init__(
        self, config: RunConfig, start: tuple[Path, str] | None, tasks: Tasks, folder: Path
    ) -> None:
        begins = "best" if start else "initial"
        super().__init__(f"{config.name}, {begins}", folder, list(tasks), "the file of --then")
        self.start = start
        self._config = config
        self._tasks = tasks

    def task(self, name: str) -> RunConfig:
        """Return the run file of a task with the initial policy and its own instruction."""
        return parse_config(merge(dump_config(self._config), self._tasks[name]), f"--then {name}")

    def config(self, index: int, before: Sequence[Row] = ()) -> RunConfig:
        name = self.stages[index]
        task = self.task(name)
        raw = dump_config(task)
        start = self.start
        if before:
            best = self.folder / self.stages[index - 1] / "best"
            start = best, before[-1]["best_instruction"]
        if start is not None:
            raw = merge(raw, {"policy": {"path": str(start[0])}})
            if task.method.evolves == "instruction" and "instruction" not in self._tasks[name]:
                raw = merge(raw, {"instruction": {"text": start[1]}})
        training = task.training
        rollouts = training.steps * training.questions_per_step * training.group_size
        raw = merge(raw, {"training": {"rollout_budget": rollouts}})
        raw |= {"name": f"{self.name}, {name}", "output": str(self.folder / name)}
        return parse_config(raw, f"--then {name}")
