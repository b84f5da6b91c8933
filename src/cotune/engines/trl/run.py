"""A run file on TRL, from loading the policy to the summary."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from cotune.build import (
    build_llm,
    build_strategy,
    initial_instruction,
)
from cotune.changes import changeable, identity, renewed
from cotune.config import RunConfig
from cotune.contracts import State
from cotune.coordinator import Journal
from cotune.engines.codec import HFCodec
from cotune.engines.trl.best import BestPolicy
from cotune.engines.trl.checkpoints import latest_checkpoint, load_state
from cotune.engines.trl.checks import steps_per_batch
from cotune.engines.trl.comm import world
from cotune.engines.trl.joint import Hook, Parts, TRLJoint
from cotune.engines.trl.setup import Loaded, Setup, grpo_config, load_policy, prepare
from cotune.engines.trl.sharding import check_spread, restore_weights
from cotune.engines.trl.trackers import close_reports, report_scores, tensorboard_into
from cotune.engines.trl.trained import Trained
from cotune.engines.trl.trainer import JointTrainer
from cotune.evolution.population import Best
from cotune.experiments.evaluate import EXACT_MATCH, Score, measure_of, score_trajectories
from cotune.llm.ledger import Ledger, policy_rollouts
from cotune.memory import rounding_notice
from cotune.records import Prompt, Trajectory
from cotune.run_dir import RunDir
from cotune.strategies.inspo import Inspo
from cotune.strategies.p2o import P2O

__all__ = ["Outcome", "grpo_config", "load_policy", "train"]


@dataclass(frozen=True)
class Outcome:
    """What a finished run is worth, and what it cost.

    Attributes:
        before: test split, untrained policy, initial instruction; None where not measured.
        after: test split, reported policy, best instruction.
        plain: test split, reported policy, initial instruction.
        hinted: test split, reported policy, best instruction and best hint; None without hints.
        choice: how INSPO's best instruction of the last step was told from the others.
    """

    before: Score | None
    after: Score
    plain: Score
    instruction: str
    instruction_id: str
    steps: int
    hinted: Score | None = None
    choice: Best | None = None


def train(
    config: RunConfig, run: RunDir, journal: Journal, resume: bool, setup: Setup | None = None
) -> Outcome:
    """Trains to the end, from the newest checkpoint if `resume`; evaluates and keeps the best.

    Args:
        config: the run file.
        run: its folder.
        journal: the folder or something that shows it, too; on other ranks than the first
            something that writes nothing.
        setup: what `prepare` loaded; loaded here if None.
    """
    setup = setup or prepare(config, run.checkpoints_path)
    evaluation = RunEvaluation(config, run, BestPolicy(run.best_path, setup.tokenizer))
    with Ledger(run.ledger_path if world().rank == 0 else ":memory:") as ledger:
        joint, trainer, budget = build_trainer(config, setup, journal, ledger, evaluation)
        # A run that was stopped after its last step is evaluated without any rollout before.
        joint.bind(trainer)
        tensorboard_into(joint, run.path / "tensorboard")
        checkpoint = latest_checkpoint(run.checkpoints_path) if resume else None
        if resume and checkpoint is None:
            journal.cut_back(-1)
            journal.event("notice", 0, text="no whole checkpoint: the run starts anew")
            evaluation.forget()
        if checkpoint is None:
            journal.event("run_started", 0, config=config.name, strategy=config.strategy.kind)
            if text := lost_steps(setup, setup.args.learning_rate):
                journal.event("notice", 0, text=text)
        if checkpoint is not None and (state := _state_of(checkpoint)) is not None:
            joint.check_identity(state)
            check_spread(state, trainer)  # before the trainer loads weights of another shape
        over = checkpoint is not None and budget.spent() and went_to_its_end(joint, checkpoint)
        if not config.has_batches:
            joint.evolve_only()
        elif not over:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        outcome = evaluation.finish(joint)
        close_reports(joint)
        return outcome


def build_trainer(
    config: RunConfig, setup: Setup, journal: Journal, ledger: Ledger, before_rollout: Hook
) -> tuple[TRLJoint, JointTrainer, "RolloutBudget"]:
    """A run file's trainer, which writes where it is told and shows nothing by itself."""
    tokenizer, environment, args = setup.tokenizer, setup.environment, setup.args
    parts = Parts(
        strategy=build_strategy(
            config, environment, HFCodec(tokenizer, config.policy.template_args)
        ),
        environment=environment,
        llm=build_llm(config, ledger),
        journal=journal,
        meter=ledger,
        limits=config.limits,
        seed=config.seed,
        rewards=setup.rewards,
        rows_per_call=config.training.rows_per_call,
        resample_rounds=config.training.resample_rounds,
        identity=identity(config),
        renew=lambda saved: renewed(saved, config),
        frozen=config.training.frozen,
        changeable=changeable(config),
    )
    joint = TRLJoint(parts, tokenizer, args, before_rollout)
    budget = RolloutBudget(joint, ledger, config)
    trainer = JointTrainer(
        setup.model,
        args=args,
        train_dataset=joint.dataset,
        processing_class=tokenizer,
        rollout_func=joint.rollout_func,
        reward_funcs=joint.reward_funcs,
        peft_config=setup.adapter,
        # The budget first: that a run is over belongs into the state that is saved.
        callbacks=[budget, *joint.callbacks],
    )
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    return joint, trainer, budget


def went_to_its_end(joint: TRLJoint, checkpoint: Path) -> bool:
    """Takes up a run that had ended its training before its newest checkpoint; False for others.

    The trainer itself would train one step more before it looked.
    """
    state = _state_of(checkpoint)
    if state is None or not state["ended"]:
        return False
    joint.resume(state)
    restore_weights(joint.unwrapped, checkpoint)
    joint.weights_replaced()
    return True


def lost_steps(setup: Loaded, learning_rate: float) -> str | None:
    """Says where the weights' type is too coarse for the steps; adapters are float32."""
    if setup.adapter is not None or not learning_rate:
        return None
    return rounding_notice(str(setup.model.dtype).removeprefix("torch."), learning_rate)


def _state_of(checkpoint: Path) -> State | None:
    return load_state(checkpoint.parent, int(checkpoint.name.removeprefix("checkpoint-")))


_PROMPTS = {"before": "initial", "plain": "initial", "hinted": "best with hint"}
# What trackers call the scores; they show eval/em and test/em.
_SCORES = {
    "before": "test_em_before",
    "during": "eval_em",
    "after": "test_em",
    "plain": "test_em_plain",
    "hinted": "test_em_hinted",
}


class RunEvaluation:
    """Evaluates before training, every so often, and at the end; keeps the best policy."""

    def __init__(self, config: RunConfig, run: RunDir, best: BestPolicy) -> None:
        self._config, self._run, self._best = config, run, best

    def __call__(self, joint: Trained, trained: int) -> None:
        """The hook before a step's rollouts, on rank 0."""
        here = joint.coordinator.evaluate_here
        if trained == 0 and self._config.evaluation.before:
            self._measure(joint, here, "test", "before", self._initial(joint), "i0")
        every = self._config.evaluation.every
        if every and trained and trained % every == 0:
            score = self._measure(joint, here, "validation", "during")
            self._best.offer(joint, score.em, trained)

    def finish(self, joint: Trained) -> Outcome:
        """Scores of the reported policy: the best on validation, or the last without validation."""
        together = joint.coordinator.evaluate
        joint.begin_closing()
        em = 0.0
        if self._config.evaluation.every:
            em = self._measure(joint, together, "validation", "during").em
        joint.coordinator.on_rank_zero(lambda: self._best.offer(joint, em, joint.batches))
        instruction_id, kept = self._best.restore(joint)
        text = kept.instruction
        after = self._measure(joint, together, "test", "after", Prompt(text), instruction_id)
        initial = self._initial(joint)
        plain = after
        if text != initial.instruction:
            plain = self._measure(joint, together, "test", "plain", initial, "i0")
        hinted = None
        if kept.hint:
            hinted = self._measure(joint, together, "test", "hinted", kept, instruction_id)
        return Outcome(
            self._before(),
            after,
            plain,
            text,
            instruction_id,
            joint.batches,
            hinted,
            self._choice(joint),
        )

    def forget(self) -> None:
        """Drops what was kept of a run that starts anew."""
        self._best.forget()

    def _choice(self, joint: Trained) -> Best | None:
        """INSPO's I* with how often it was observed; says when it is too close to call."""
        strategy = joint.coordinator.strategy
        if isinstance(strategy, P2O):
            strategy = strategy.base
        if not isinstance(strategy, Inspo) or joint.coordinator.comm.rank != 0:
            return None
        best = strategy.best()
        joint.parts.journal.event(
            "best_instruction",
            joint.coordinator.step,
            id=best.instruction.id,
            weight=best.weight,
            observed_steps=best.steps,
            observed_rollouts=best.rollouts,
            runner_up=best.runner_up.id if best.runner_up else None,
            too_close_to_call=best.too_close,
        )
        return best

    def _measure(
        self,
        joint: Trained,
        evaluate: Callable[..., list[Trajectory]],
        split: str,
        when: str,
        prompt: Prompt | None = None,
        instruction_id: str = "",
    ) -> Score:
        trajectories = evaluate(joint.parts.environment.tasks(split), prompt, instruction_id)
        score = score_trajectories(
            trajectories, measure_of(joint.parts.environment, joint.parts.rewards)
        )
        if joint.coordinator.comm.rank == 0:
            # Under the step that follows, so that a resume drops these lines and writes them anew.
            step, journal = joint.coordinator.step, joint.parts.journal
            journal.event(
                "evaluated",
                step,
                trained=joint.batches,
                split=split,
                when=when,
                prompt=_PROMPTS.get(when, "best"),
                instruction_id=trajectories[0].assignment.instruction_id,
                em=score.em,
                n=score.n,
                measure=score.measure,
                by_stratum={name: list(value) for name, value in score.by_stratum.items()},
            )
            journal.trajectories(step, f"evaluate_{when}", trajectories)
            report_scores(joint, {_SCORES[when]: score.em})
        return score

    def _initial(self, joint: Trained) -> Prompt:
        return Prompt(initial_instruction(self._config, joint.parts.environment))

    def _before(self) -> Score | None:
        """The score before training, also of an attempt that was cut off."""
        for row in self._run.read_events():
            if row["kind"] == "evaluated" and row.get("when") == "before":
                strata = {name: (em, n) for name, (em, n) in row["by_stratum"].items()}
                return Score(row["em"], row["n"], strata, row.get("measure", EXACT_MATCH))
        return None


class RolloutBudget(TrainerCallback):
    """Ends training when another batch would exceed `training.rollout_budget`."""

    def __init__(self, joint: TRLJoint, ledger: Ledger, config: RunConfig) -> None:
        self._joint, self._ledger = joint, ledger
        self._budget = config.training.rollout_budget
        self._batch = joint.questions * (joint.args.num_generations or 1)
        self._steps_per_batch = steps_per_batch(joint.args)
        joint.rollouts_left = self.left

    def left(self) -> int | None:
        """What is left of the budget, as rank 0 knows it; None without one."""
        if self._budget is None:
            return None
        return self._budget - policy_rollouts(self._ledger.totals().rollouts)

    def spent(self) -> bool:
        """Whether another batch would exceed the budget; all ranks ask together."""
        if self._budget is None:
            return False
        return self._joint.coordinator.comm.broadcast(self.left()) < self._batch

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.global_step % self._steps_per_batch:
            return  # a batch that is rolled out is trained on to its end
        self._joint.ended = self.spent()
        if self._joint.ended:
            control.should_training_stop = True
