"""The trainer's callback: starts or resumes, saves the strategy, writes metrics and evaluations."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import SaveStrategy

from cotune.engines.trl.bound import metrics_row
from cotune.engines.trl.checkpoints import drop_orphans, drop_torn, load_state, save_state
from cotune.engines.trl.checks import check_weighing
from cotune.engines.trl.trainer import JointTrainer
from cotune.errors import ConfigError
from cotune.run.scores import measure_of, score_trajectories

if TYPE_CHECKING:
    from cotune.engines.trl.hooks import TRLJoint

_log = logging.getLogger("cotune")


class JointCallback(TrainerCallback):
    """Keeps cotune's half of every checkpoint; see `checkpoints`."""

    def __init__(self, joint: "TRLJoint") -> None:
        self._joint = joint
        self._training = False

    @property
    def _writes(self) -> bool:
        return self._joint.coordinator.comm.rank == 0

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """The end of the trainer's construction: the earliest that anything is known of it."""
        if args is not self._joint.args:
            raise ConfigError(
                "the trainer was given other args than cotune checked: give the same GRPOConfig to "
                "for_trl(tokenizer, args) and to the trainer"
            )
        trainer = JointTrainer.in_the_making()
        if trainer is None:
            check_weighing(self._joint.parts.strategy)
        else:
            trainer.joint = self._joint

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        joint, self._training = self._joint, True
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
        if control.should_save:
            self._save_state(state)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._writes:
            drop_orphans(self._joint.state_folder, keep_from=state.global_step)
            self._joint.parts.journal.event("saved", self._joint.batches)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._write_evaluation(state)
        # Only after this does the trainer decide whether to save: our half comes first.
        if self._training and args.save_strategy == SaveStrategy.BEST:
            self._save_state(state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._training = False
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self._load_best(Path(state.best_model_checkpoint))
        if self._writes:
            drop_orphans(self._joint.state_folder, keep_from=state.global_step + 1)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        row = metrics_row(logs, state)
        if self._writes and row is not None:
            own = {k: float(v) for k, v in self._joint.metrics.items()}
            self._joint.parts.journal.metrics(self._joint.batches, {**row, **own})

    def _save_state(self, state: TrainerState) -> None:
        if self._writes:
            save_state(self._joint.state_folder, state.global_step, self._joint.state_dict())

    def _load_best(self, checkpoint: Path) -> None:
        """The strategy of the checkpoint whose weights the trainer has just loaded."""
        joint, step = self._joint, int(checkpoint.name.rpartition("-")[2])
        saved = load_state(joint.state_folder, step) if checkpoint.is_dir() else None
        if saved is None:
            if self._writes:
                _log.warning("%s is not whole: the instruction is the last step's", checkpoint)
            return
        joint.coordinator.strategy.load_state_dict(saved["coordinator"]["strategy"])
        joint.weights_replaced()

    def _write_evaluation(self, state: TrainerState) -> None:
        """The trainer's own evaluation, as a run file's is written down."""
        joint = self._joint
        trajectories, joint.evaluated = list(joint.evaluated.values()), {}
        if not (trajectories and self._writes):
            return
        measure = measure_of(joint.parts.environment, joint.parts.rewards)
        score, step = score_trajectories(trajectories, measure), joint.batches
        when = "during" if self._training and step else "after" if step else "before"
        joint.parts.journal.event(
            "evaluated",
            step,
            trained=step,
            split=joint.splits.get(trajectories[0].task.id, "train"),
            when=when,
            prompt="best",
            instruction_id=trajectories[0].assignment.instruction_id,
            em=score.em,
            n=score.n,
            measure=score.measure,
            by_stratum={name: list(value) for name, value in score.by_stratum.items()},
        )
        joint.parts.journal.trajectories(step, f"evaluate_{when}", trajectories)
