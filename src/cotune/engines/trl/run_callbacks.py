"""What a joint run does at the events of its trainer: begin, log, save, and end at its budget."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainerState
from transformers.trainer_utils import SaveStrategy, rotate_checkpoints
from trl import GRPOConfig

from cotune.engines.trl.checks import steps_per_batch
from cotune.run.checkpoints import load_state, save_state
from cotune.utils.progress import report

if TYPE_CHECKING:
    from cotune.engines.trl.trl_joint import TRLJoint


class CheckpointCallback(TrainerCallback):
    """Begin or resume the run, end it at its budget, complete every checkpoint, record metrics."""

    def __init__(self, joint: "TRLJoint") -> None:
        self._joint = joint
        self._micro_batches = 0

    @property
    def _writes(self) -> bool:
        return self._joint.coordinator.comm.rank == 0

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        joint = self._joint
        # A call of train() that was interrupted may have left half of a batch.
        trainer: Any = joint.trainer
        trainer._step = 0
        trainer._buffered_inputs = None
        trainer._current_train_step_time = 0.0
        if state.global_step == 0:
            if self._writes:
                joint.attempt = joint.parts.record.begin_attempt(None)
            return
        joint.resume(load_state(joint.state_folder / f"checkpoint-{state.global_step}"))

    def on_substep_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._report(args)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._report(args)
        # A batch that has been rolled out is trained on to its end.
        if state.global_step % steps_per_batch(args) == 0:
            self._joint.ended = self._joint.budget_is_spent()
            if self._joint.ended:
                control.should_training_stop = True
                # As at the last step: a kill while the result is scored must not train it again.
                control.should_save = args.save_strategy == SaveStrategy.STEPS

    def _report(self, args: GRPOConfig) -> None:
        """Report the micro-batches of the current update; rank 0's."""
        if self._writes:
            total = steps_per_batch(args) * args.gradient_accumulation_steps
            self._micro_batches = self._micro_batches % total + 1
            report("update", self._micro_batches, total)

    def on_save(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        joint = self._joint
        joint.coordinator.comm.gather(None)  # wait until every process has written its files
        if self._writes:
            checkpoint = joint.state_folder / f"checkpoint-{state.global_step}"
            save_state(checkpoint, joint.state_dict())
            rotate_checkpoints(
                str(joint.state_folder),
                args.save_total_limit,
                state.best_model_checkpoint,
                use_mtime=True,
            )
            joint.parts.record.event("saved", joint.batches)

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: Any,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if not self._writes or logs is None or "loss" not in logs:
            return  # not the log of an optimizer step
        joint = self._joint
        row = {name: float(v) for name, v in logs.items() if isinstance(v, int | float)}
        row["optimizer_step"] = float(state.global_step)
        row |= {name: float(value) for name, value in joint.metrics.items()}
        joint.parts.record.metrics(joint.batches, row)


class ResumedRate(TrainerCallback):
    """Let a resumed run follow its own learning rate and schedule.

    The trainer loads the optimizer and the scheduler of the checkpoint, and with them the rate of the
    run file as it was, and the rate at the last step of a schedule that may have been shorter.
    """

    def on_train_begin(
        self,
        args: Any,
        state: TrainerState,
        control: Any,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        **_: Any,
    ) -> None:
        if state.global_step and isinstance(lr_scheduler, LambdaLR):  # not DeepSpeed's
            follow(optimizer, lr_scheduler, args.learning_rate)


def follow(optimizer: Any, scheduler: LambdaLR, base: float) -> None:
    """Set a loaded scheduler's base rate, and the rate of the next step by its own schedule."""
    scheduler.base_lrs = [base] * len(scheduler.base_lrs)
    rates: list[Any] = [base * scale(scheduler.last_epoch) for scale in scheduler.lr_lambdas]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["initial_lr"] = base
        group["lr"] = rate
    scheduler._last_lr = list(rates)  # as `step` leaves it
