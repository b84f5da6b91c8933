"""Train a run file on TRL, from loading the policy to the summary."""

import logging
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerState
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import SaveStrategy

from cotune.config.run_file import RunConfig
from cotune.engines.best_policy import BestPolicy
from cotune.engines.comm import world
from cotune.engines.evaluation import Outcome, RunEvaluation
from cotune.engines.joint import run_parts
from cotune.engines.trl.checkpoints import choose_checkpoint, load_state
from cotune.engines.trl.checks import steps_per_batch
from cotune.engines.trl.joint_trainer import JointTrainer
from cotune.engines.trl.learning_rate import ResumedRate
from cotune.engines.trl.run_file_setup import Setup
from cotune.engines.trl.sharding import check_spread, restore_weights
from cotune.engines.trl.trackers import close_reports, report_scores, tensorboard_into
from cotune.engines.trl.trl_joint import Hook, TRLJoint
from cotune.engines.trl.trl_run import TRLRun
from cotune.engines.undamaged import Chosen
from cotune.policy.adapters import save_weights
from cotune.policy.codec import HFCodec
from cotune.policy.update_rounding import rounding_notice
from cotune.protocols import State
from cotune.run.costs import policy_rollouts
from cotune.run.record import Record
from cotune.run.run_dir import RunDir
from cotune.utils.progress import begin


class TRLBest(BestPolicy):
    """Save and load the best policy, whose weights may be sharded over the trainer's processes."""

    def write_weights(self, joint: TRLRun[Any], folder: Path, step: int) -> None:
        save_weights(joint.unwrapped, folder, joint.coordinator.gather_here())

    def load_weights(self, joint: TRLRun[Any], step: int) -> None:
        restore_weights(joint.unwrapped, self._folder)
        joint.weights_replaced()


def train(
    config: RunConfig,
    run: Record,
    setup: Setup,
    chosen: Chosen | None = None,
) -> Outcome:
    """Train to the end; evaluate and keep the best.

    Args:
        config: the run file.
        run: its record, silent on ranks other than the first.
        setup: the result of `prepare`.
        chosen: what `choose` found; None for a run from the start.
    """
    evaluation = RunEvaluation(
        config.evaluation,
        config.instruction,
        run,
        TRLBest(run.best_path, setup.tokenizer),
        report_scores,
    )
    joint, trainer, budget = build_trainer(config, setup, run, evaluation)
    # A run that was stopped after its last step is evaluated without another rollout.
    joint.bind(trainer)
    tensorboard_into(joint, run.path / "tensorboard")
    joint.chosen, checkpoint = chosen, None if chosen is None else chosen.path
    if chosen is not None and checkpoint is None:
        run.cut_back(-1)
        run.event("notice", 0, text="no complete checkpoint: the run starts from the beginning")
        evaluation.forget()
    if checkpoint is None:
        run.event("run_started", 0, config=config.name, strategy=config.strategy.kind)
        if text := lost_steps(setup):
            run.event("notice", 0, text=text)
    if checkpoint is not None and (state := _state_of(checkpoint)) is not None:
        joint.check_identity(state)
        check_spread(state, trainer)  # before the trainer loads weights of a different shape
    if chosen is not None and world().rank == 0:
        chosen.set_aside()
    over = checkpoint is not None and budget.spent() and went_to_its_end(joint, checkpoint)
    if not config.has_batches:
        joint.evolve_only()
    elif not over:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    outcome = evaluation.finish(joint)
    close_reports(joint)
    return outcome


def choose(run: RunDir, setup: Setup) -> Chosen:
    """Return the checkpoint to resume from, which the first process chooses.

    Raises:
        ConfigError: all checkpoints or the kept policy is damaged.
    """
    chosen = None
    if world().rank == 0:
        chosen = choose_checkpoint(run.checkpoints_path)
        if chosen.path is not None:
            TRLBest(run.best_path, setup.tokenizer).check()
    return world().broadcast(chosen)


def build_trainer(
    config: RunConfig, setup: Setup, record: Record, before_rollout: Hook
) -> tuple[TRLJoint, JointTrainer, "RolloutBudget"]:
    """Build a run file's trainer, without progress output."""
    begin("setting up the trainer")
    tokenizer, args = setup.tokenizer, setup.args
    codec = HFCodec(tokenizer, config.policy.template_args)
    parts = run_parts(config, setup.environment, codec, setup.rewards, record)
    joint = TRLJoint(parts, tokenizer, args, before_rollout)
    budget = RolloutBudget(joint, record, config.training.rollout_budget)
    logging.getLogger("trl.trainer.grpo_trainer").addFilter(_not_about_reference)
    trainer = JointTrainer(
        setup.model,
        args=args,
        train_dataset=joint.dataset,
        processing_class=tokenizer,
        rollout_func=joint.rollout_func,
        reward_funcs=joint.reward_funcs,
        peft_config=setup.adapter,
        # The budget comes first, so that the saved state includes whether it ended the run.
        callbacks=[budget, *joint.callbacks, ResumedRate()],
    )
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    return joint, trainer, budget


def _not_about_reference(record: logging.LogRecord) -> bool:
    """Return False for TRL's warning that a loaded policy ignores `model_init_kwargs`: they are for the reference."""
    return "`model_init_kwargs` will be ignored" not in record.getMessage()


def went_to_its_end(joint: TRLJoint, checkpoint: Path) -> bool:
    """Restore a run whose training had ended by its newest checkpoint; return False otherwise.

    The trainer itself would train one more step before checking.
    """
    state = _state_of(checkpoint)
    if state is None or not state["ended"]:
        return False
    joint.resume(state)
    restore_weights(joint.unwrapped, checkpoint)
    joint.weights_replaced()
    return True


def lost_steps(setup: Setup) -> str | None:
    """Return a warning if the weights' dtype is too coarse for updates; adapters are float32."""
    learning_rate = setup.args.learning_rate
    if setup.adapter is not None or not learning_rate:
        return None
    return rounding_notice(str(setup.model.dtype).removeprefix("torch."), learning_rate)


def _state_of(checkpoint: Path) -> State | None:
    return load_state(checkpoint.parent, int(checkpoint.name.removeprefix("checkpoint-")))


class RolloutBudget(TrainerCallback):
    """End training when another batch would exceed `training.rollout_budget`."""

    def __init__(self, joint: TRLJoint, record: Record, budget: int | None) -> None:
        self._joint, self._record, self._budget = joint, record, budget
        self._batch = joint.questions * (joint.args.num_generations or 1)
        self._steps_per_batch = steps_per_batch(joint.args)
        joint.rollouts_left = self.left

    def left(self) -> int | None:
        """Return the remaining budget, which only rank 0 knows; None without a budget."""
        if self._budget is None:
            return None
        return self._budget - policy_rollouts(self._record.totals().rollouts)

    def spent(self) -> bool:
        """Return whether another batch would exceed the budget; call on all ranks together."""
        if self._budget is None:
            return False
        return self._joint.coordinator.comm.broadcast(self.left()) < self._batch

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        if state.global_step % self._steps_per_batch:
            return  # finish training on a batch that has been rolled out
        self._joint.ended = self.spent()
        if self._joint.ended:
            control.should_training_stop = True
            # As at the last step: a kill while the result is scored must not train it again.
            control.should_save = args.save_strategy == SaveStrategy.STEPS
