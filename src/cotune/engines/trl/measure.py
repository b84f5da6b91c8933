"""Run and time real steps of a run file, with their memory."""

import sys
import time
from typing import Any

import torch
from transformers import TrainerCallback, TrainerState

from cotune.engines.engine import Measured, MeasuredStep
from cotune.engines.trl.checks import steps_per_batch
from cotune.engines.trl.joint_trainer import JointTrainer
from cotune.engines.trl.policy_update import PolicyUpdate
from cotune.engines.trl.trl_joint import TRLJoint
from cotune.run.record import Record


def measure_steps(trainer: JointTrainer, steps: int) -> Measured:
    """Train the first steps of a run file, as `train` would, without evaluation or checkpoints.

    The schedule is that of the whole run. Evolution and its LLM calls run when they are due.

    Args:
        trainer: a run file's, in a temporary folder, that neither evaluates nor saves.
        steps: the number of steps; the run's budget may end it earlier.
    """
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with trainer.record_run(resume=False, steps=steps) as record:
        watch = _Stopwatch(steps, record)
        trainer.joint.before_rollout = watch.end_evolution
        trainer.add_callback(watch)
        PolicyUpdate.train(trainer)
        totals = record.totals()
    on_gpu = torch.cuda.is_available()
    return Measured(
        steps=tuple(watch.steps),
        totals=totals,
        memory=peak_memory(),
        gpu_memory=torch.cuda.max_memory_reserved() if on_gpu else None,
        gpu_total=torch.cuda.get_device_properties().total_memory if on_gpu else None,
    )


class _Stopwatch(TrainerCallback):
    """Time rollout batches, and end training after a number of them."""

    def __init__(self, count: int, record: Record) -> None:
        self.steps: list[MeasuredStep] = []
        self._count = count
        self._record = record
        self._began = 0.0
        self._evolved = 0.0
        self._rollouts_before = 0.0

    def end_evolution(self, joint: TRLJoint, trained: int) -> None:
        """Record the time of the hook before a step's rollouts, on rank 0."""
        self._evolved = time.monotonic()

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        if state.global_step % steps_per_batch(args) == 0:
            self._began = self._evolved = time.monotonic()
            self._rollouts_before = self._record.totals().seconds["train"]

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        if state.global_step % steps_per_batch(args):
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        rollouts = self._record.totals().seconds["train"] - self._rollouts_before
        self.steps.append(
            MeasuredStep(
                evolution=self._evolved - self._began,
                rollouts=rollouts,
                update=time.monotonic() - self._evolved - rollouts,
            )
        )
        if len(self.steps) >= self._count:
            control.should_training_stop = True


def peak_memory() -> int | None:
    """Return the peak resident memory of this process in bytes; None if unknown."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
