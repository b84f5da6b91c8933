"""The trainer's callback: starts or resumes, saves the strategy, writes metrics."""

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from cotune.contracts import ConfigError
from cotune.engines.trl.checkpoints import drop_orphans, drop_torn, load_state, save_state

if TYPE_CHECKING:
    from cotune.engines.trl.joint import TRLJoint


class JointCallback(TrainerCallback):
    """Keeps cotune's half of every checkpoint; see `checkpoints`."""

    def __init__(self, joint: "TRLJoint") -> None:
        self._joint = joint

    @property
    def _writes(self) -> bool:
        return self._joint.coordinator.comm.rank == 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        joint = self._joint
        if self._writes:
            drop_torn(joint.state_folder)
        if state.global_step == 0:
            if self._writes:
                joint.parts.meter.begin_attempt(None)
            return
        saved = load_state(joint.state_folder, state.global_step)
        if saved is None:
            raise ConfigError(
                f"{joint.state_folder}: checkpoint-{state.global_step} has no readable "
                f"cotune-state-{state.global_step}.json beside it; resume from one that has"
            )
        joint.resume(saved)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if control.should_save and self._writes:
            save_state(self._joint.state_folder, state.global_step, self._joint.state_dict())

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._writes:
            drop_orphans(self._joint.state_folder, keep_from=state.global_step)
            self._joint.parts.journal.event("saved", self._joint.batches)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if not self._writes or logs is None or "loss" not in logs:
            return
        numbers = {k: float(v) for k, v in logs.items() if isinstance(v, int | float)}
        own = {k: float(v) for k, v in self._joint.metrics.items()}
        row = {**numbers, **own, "optimizer_step": float(state.global_step)}
        self._joint.parts.journal.metrics(self._joint.batches, row)
