"""The learning rate of a run that is resumed with other settings."""

from typing import Any

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainerState


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
