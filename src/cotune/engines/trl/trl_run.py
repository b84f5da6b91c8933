"""Shared by joint runs and fine-tuning on TRL: the trainer's policy, and paired checkpoints."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerState

from cotune.engines.joint import TrainingRun
from cotune.engines.trl.checkpoints import (
    complete_checkpoint,
    drop_orphans,
    drop_torn,
    save_state,
)
from cotune.engines.trl.sharding import gathered
from cotune.errors import EngineError

AnyTrainer = TypeVar("AnyTrainer", bound=Trainer)


class TRLRun(TrainingRun, Generic[AnyTrainer]):
    """A run that is bound to a trainer once the trainer exists.

    Attributes:
        args: the trainer's configuration.
    """

    args: Any
    _trainer: AnyTrainer | None = None

    @property
    def bound(self) -> bool:
        """Return whether a trainer is bound."""
        return self._trainer is not None

    @property
    def trainer(self) -> AnyTrainer:
        if self._trainer is None:
            raise EngineError("no trainer yet: call bind(trainer), or train, before evaluating")
        return self._trainer

    @property
    def state_folder(self) -> Path:
        """Return the folder of the checkpoints."""
        return Path(cast(str, self.args.output_dir))

    @property
    def unwrapped(self) -> PreTrainedModel:
        """Return this process's copy of the current policy; under FSDP2 its weights are shards."""
        wrapped = self.trainer.model_wrapped
        return cast(PreTrainedModel, self.trainer.accelerator.unwrap_model(wrapped))

    @contextmanager
    def policy(self) -> Iterator[PreTrainedModel]:
        """Yield the current policy, unwrapped, whole and in evaluation mode; call on all ranks."""
        # TRL's context for generation would reset gradient checkpointing with different arguments.
        model = self.unwrapped
        training = model.training
        model.eval()
        try:
            with gathered(model):
                yield model
        finally:
            model.train(training)

    def weights_replaced(self) -> None:
        """Call after loading weights into the policy without the trainer."""


AnyRun = TypeVar("AnyRun", bound=TRLRun[Any])


class CheckpointCallback(TrainerCallback, Generic[AnyRun]):
    """Save cotune's half of every checkpoint, and record the trainer's metrics; on rank 0.

    `checkpoints` says when a pair is complete.
    """

    _saved = -1  # the step whose half was saved last

    def __init__(self, joint: AnyRun) -> None:
        self._joint = joint

    @property
    def _writes(self) -> bool:
        return self._joint.coordinator.comm.rank == 0

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        if self._writes:
            drop_torn(self._joint.state_folder)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        if control.should_save:
            self._save_state(state)

    def on_save(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._joint.coordinator.comm.gather(None)  # wait until every process has written its files
        if self._saved != state.global_step:
            self._save_state(state)  # a later callback asked for this checkpoint
        if self._writes:
            complete_checkpoint(self._joint.state_folder, state.global_step)
            drop_orphans(self._joint.state_folder, keep_from=state.global_step)
            self._joint.parts.record.event("saved", self._joint.batches)

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
        row = {name: float(v) for name, v in logs.items() if isinstance(v, int | float)}
        row["optimizer_step"] = float(state.global_step)
        self._joint.parts.record.metrics(self._joint.batches, row | self._own_metrics(state))

    def _own_metrics(self, state: TrainerState) -> dict[str, float]:
        """Return metrics to record besides the trainer's."""
        raise NotImplementedError

    def _save_state(self, state: TrainerState) -> None:
        self._saved = state.global_step
        if self._writes:
            save_state(self._joint.state_folder, state.global_step, self._joint.state_dict())
