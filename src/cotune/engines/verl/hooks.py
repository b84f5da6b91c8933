"""One joint run on veRL's trainer: the actions at each of its hooks."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from cotune.engines.evaluation import RunEvaluation
from cotune.engines.joint import Joint, Parts
from cotune.engines.verl.checkpoints import keep_newest
from cotune.engines.verl.worker import Worker
from cotune.errors import EngineError
from cotune.rollout.task_order import TaskOrder
from cotune.run.checkpoints import save_state
from cotune.types import Assignment, Sampling, Task, Trajectory

if TYPE_CHECKING:
    from cotune.engines.verl.trainer import JointTrainer

# veRL's metrics, by the names that runs of every engine use.
_NAMES = {
    "actor/pg_loss": "loss",
    "actor/grad_norm": "grad_norm",
    "actor/entropy": "entropy",
    "actor/kl_loss": "kl",
    "actor/lr": "learning_rate",
    "actor/signed_masked_share": "p2o/ratio_masked_share",
}


class VerlJoint(Joint):
    """Run a strategy at veRL's hooks, in the trainer's process only.

    Args:
        parts: strategy, environment, LLM and outputs.
        worker: this process's environment and codec.
        verl_config: veRL's configuration for a run from the start.

    Attributes:
        evaluation: evaluates before a step's rollouts, if due; set once the run folder is open.
        trainer: veRL's trainer; set by `bind`, as is what rolls out outside its batches.
    """

    evaluation: RunEvaluation
    trainer: "JointTrainer"
    _apart: Callable[..., list[Trajectory]]

    def __init__(self, parts: Parts, worker: Worker, verl_config: DictConfig) -> None:
        training = worker.config.training
        tasks = parts.environment.tasks("train")
        order = TaskOrder(tasks, training.questions_per_step, parts.settings.seed)
        super().__init__(
            parts,
            order,
            training.steps,
            training.group_size,
            training.temperature,
            lambda *rollouts: self._apart(*rollouts),
        )
        self.worker = worker
        self.verl_config = verl_config
        self.metrics: dict[str, float] = {}
        self._sent = 0.0

    def bind(self, trainer: "JointTrainer", apart: Callable[..., list[Trajectory]]) -> None:
        """Bind the trainer, and the function that rolls out outside its batches."""
        self.trainer = trainer
        self._apart = apart

    # ---- a step, in the order of veRL's hooks

    def begin_step(self) -> None:
        """Evolve, then evaluate: weights are synced and no rollout has been requested yet."""
        self.metrics = self.coordinator.evolve(self.progress(self.batches + 1))
        self.evaluation(self, self.batches)

    def assign(self, task_ids: Sequence[str]) -> tuple[list[Assignment], Sampling]:
        """Return the assignments of a step's questions, and their sampling parameters."""
        step = self.batches + 1
        tasks: list[Task] = self.order.step(step)
        if list(task_ids) != [task.id for task in tasks]:
            raise EngineError(f"veRL's data loader did not send the questions of step {step}")
        self._sent = time.monotonic()
        assignments = self.coordinator.assign(tasks, self.group_size, self.progress(step))
        return assignments, self.coordinator.next_sampling("train")

    def take(self, trajectories: Sequence[Trajectory]) -> None:
        """Record a step's rollouts, which have returned but are not trained on yet."""
        progress = self.progress(self.batches + 1)  # whose `rollouts_left` includes this batch
        self.coordinator.count("train", trajectories, time.monotonic() - self._sent)
        self.metrics.update(self.coordinator.observe(trajectories, self.group_size, progress))

    def end_step(self, metrics: dict[str, Any]) -> bool:
        """Finish a step after training; return whether it is the last one within the budget."""
        self.batches += 1
        verl_metrics = {k: float(v) for k, v in metrics.items() if isinstance(v, int | float)}
        renamed = {_NAMES[name]: value for name, value in verl_metrics.items() if name in _NAMES}
        optimizer_step = float(self.batches * self.worker.config.training.mini_batches)
        row = {**verl_metrics, **renamed, **self.metrics, "optimizer_step": optimizer_step}
        self.parts.record.metrics(self.batches, row)
        metrics.update(self.metrics)
        self.ended = self.budget_is_spent()
        return self.ended

    def save(self, checkpoint: Path) -> None:
        """Save cotune's state after veRL has written its half of a checkpoint."""
        save_state(checkpoint, self.state_dict())
        keep_newest(checkpoint.parent, self.worker.config.training.keep_checkpoints)
        self.parts.record.event("saved", self.batches)
