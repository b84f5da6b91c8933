"""Run and time real steps of a run file."""

import time
from typing import Any

import torch
from transformers import TrainerCallback, TrainerState

from cotune.engines.engine import Measured
from cotune.engines.trl.checks import steps_per_batch
from cotune.engines.trl.joint_trainer import JointTrainer
from cotune.engines.trl.policy_update import PolicyUpdate
from cotune.engines.trl.trl_joint import TRLJoint


def measure_steps(trainer: JointTrainer, steps: int) -> Measured:
    """Train the first steps of a run file, as `train` would, without evaluation or checkpoints.

    The schedule is that of the whole run. Evolution and its LLM calls run when they are due.

    Args:
        trainer: a run file's, in a temporary folder, that neither evaluates nor saves.
        steps: the number of steps; the run's budget may end it earlier.
    """
    watch = _Stopwatch(steps)
    with trainer.record_run(resume=False, steps=steps) as record:
        trainer.joint.before_rollout = watch.end_evolution
        trainer.add_callback(watch)
        PolicyUpdate.train(trainer)
        totals = record.totals()
    gpu_memory = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else None
    return Measured(tuple(watch.steps), totals, gpu_memory)


class _Stopwatch(TrainerCallback):
    """Time rollout batches, and end training after a number of them."""

    def __init__(self, count: int) -> None:
        self.steps: list[tuple[float, float]] = []
        self._count = count
        self._began = 0.0
        self._evolved = 0.0

    def end_evolution(self, joint: TRLJoint, trained: int) -> None:
        """Record the time of the hook before a step's rollouts, on rank 0."""
        self._evolved = time.monotonic()

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        if state.global_step % steps_per_batch(args) == 0:
            self._began = self._evolved = time.monotonic()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        if state.global_step % steps_per_batch(args):
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.steps.append((self._evolved - self._began, time.monotonic() - self._evolved))
        if len(self.steps) >= self._count:
            control.should_training_stop = True
