"""A run file on TRL, from loading the policy to the summary."""

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from trl import GRPOConfig, GRPOTrainer

from cotune.build import build_environment, build_llm, build_strategy
from cotune.config import RunConfig
from cotune.contracts import ConfigError
from cotune.coordinator import Coordinator, Journal, RolloutSettings
from cotune.engines.codec import HFCodec
from cotune.engines.trl.best import BestPolicy
from cotune.engines.trl.checkpoints import latest_checkpoint
from cotune.engines.trl.joint import Parts, TRLJoint, policy_sampler
from cotune.experiments.evaluate import Score, score_trajectories
from cotune.llm.ledger import Ledger
from cotune.policies import policy_path
from cotune.records import Prompt, Trajectory
from cotune.run_dir import RunDir
from cotune.strategies.static import StaticStrategy


@dataclass(frozen=True)
class Outcome:
    """What a finished run is worth, and what it cost.

    Attributes:
        before: test split, untrained policy, initial instruction; None where not measured.
        after: test split, reported policy, best instruction.
        plain: test split, reported policy, initial instruction.
    """

    before: Score | None
    after: Score
    plain: Score
    instruction: str
    instruction_id: str
    steps: int


def load_policy(config: RunConfig) -> tuple[Any, PreTrainedTokenizerBase]:
    """Model and tokenizer by `from_pretrained`; ConfigError names what could not be loaded."""
    path = policy_path(config.policy.path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=config.policy.dtype)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"policy.path: cannot load {path!r}: {reason}") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def grpo_config(config: RunConfig, folder: Path) -> GRPOConfig:
    """TRL's configuration of a run file; `training.engine_args` wins over everything."""
    training, limits = config.training, config.limits
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rows = training.questions_per_step * training.group_size
    per_pass = training.micro_batch_size * world
    if rows % (training.mini_batches * per_pass):
        raise ConfigError(
            f"training.micro_batch_size is {training.micro_batch_size} on {world} processes; "
            f"expected a divisor of {rows} / {training.mini_batches} / {world}"
        )
    accumulation = rows // (training.mini_batches * per_pass)
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": training.steps * training.mini_batches,
        "per_device_train_batch_size": training.micro_batch_size,
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": rows // per_pass,
        "num_generations": training.group_size,
        "max_completion_length": limits.trajectory_tokens,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": training.schedule,
        "warmup_steps": training.warmup,
        "beta": training.kl,
        "epsilon": training.clip,
        "loss_type": "grpo",
        "temperature": training.temperature,
        "top_k": 0,
        "shuffle_dataset": False,
        "seed": config.seed,
        "data_seed": config.seed,
        "logging_steps": 1,
        "save_strategy": "steps" if training.save_every else "no",
        "save_steps": max(1, training.save_every) * training.mini_batches,
        "save_total_limit": training.keep_checkpoints,
        "report_to": "none",
        "disable_tqdm": True,
        "log_completions": False,
    }
    if not torch.cuda.is_available():
        values |= {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    try:
        return GRPOConfig(**(values | training.engine_args))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"training.engine_args: {' '.join(str(error).split())}") from error


def train(config: RunConfig, run: RunDir, journal: Journal, resume: bool) -> Outcome:
    """Trains to the end, from the newest checkpoint if `resume`; evaluates and keeps the best.

    Args:
        config: the run file.
        run: its folder.
        journal: the folder or something that shows it, too.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    model, tokenizer = load_policy(config)
    environment = build_environment(config)
    with Ledger(run.ledger_path) as ledger:
        strategy = build_strategy(
            config, environment, lambda text: len(tokenizer(text)["input_ids"])
        )
        parts = Parts(
            strategy=strategy,
            environment=environment,
            llm=build_llm(config, ledger),
            journal=journal,
            meter=ledger,
            limits=config.limits,
            seed=config.seed,
            rows_per_call=config.training.rows_per_call,
        )
        args = grpo_config(config, run.checkpoints_path)
        evaluation = RunEvaluation(config, run, BestPolicy(run.best_path, tokenizer))
        joint = TRLJoint(parts, tokenizer, args, before_rollout=evaluation)
        trainer = GRPOTrainer(
            model,
            args=args,
            train_dataset=joint.dataset,
            processing_class=tokenizer,
            rollout_func=joint.rollout_func,
            reward_funcs=joint.reward_funcs,  # pyright: ignore[reportArgumentType]
            callbacks=[*joint.callbacks, RolloutBudget(joint, ledger, config)],
        )
        for callback in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(callback)
        checkpoint = latest_checkpoint(run.checkpoints_path) if resume else None
        if resume and checkpoint is None:
            journal.event("notice", 0, text="no whole checkpoint: the run starts anew")
            journal.cut_back(-1)
        journal.event("run_started", 0, config=config.name, strategy=config.strategy.kind)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        return evaluation.finish(joint)


class RunEvaluation:
    """Evaluates before training, every so often, and at the end; keeps the best policy."""

    def __init__(self, config: RunConfig, run: RunDir, best: BestPolicy) -> None:
        self._config, self._run, self._best = config, run, best

    def __call__(self, joint: TRLJoint, trained: int) -> None:
        """The hook before a step's rollouts, on rank 0."""
        here = joint.coordinator.evaluate_here
        if trained == 0 and self._config.evaluation.before:
            self._measure(joint, here, "test", "before", self._initial(joint))
        every = self._config.evaluation.every
        if every and trained and trained % every == 0:
            score = self._measure(joint, here, "validation", "during", None)
            self._best.offer(joint, score.em, trained)

    def finish(self, joint: TRLJoint) -> Outcome:
        """Scores of the reported policy: the best on validation, or the last without validation."""
        together = joint.coordinator.evaluate
        if self._config.evaluation.every:
            score = self._measure(joint, together, "validation", "during", None)
            self._best.offer(joint, score.em, joint.batches)
        else:
            self._best.offer(joint, 0.0, joint.batches)
        instruction_id, text = self._best.restore(joint)
        after = self._measure(joint, together, "test", "after", Prompt(text))
        initial = self._initial(joint)
        plain = after
        if text != initial.instruction:
            plain = self._measure(joint, together, "test", "plain", initial)
        return Outcome(self._before(), after, plain, text, instruction_id, joint.batches)

    def _measure(
        self,
        joint: TRLJoint,
        evaluate: Callable[..., list[Trajectory]],
        split: str,
        when: str,
        prompt: Prompt | None,
    ) -> Score:
        trajectories = evaluate(joint.parts.environment.tasks(split), prompt)
        score = score_trajectories(trajectories)
        if joint.coordinator.comm.rank == 0:
            step, journal = joint.batches, joint.parts.journal
            journal.event(
                "evaluated",
                step,
                split=split,
                when=when,
                prompt="best" if prompt is None else when,
                instruction_id=trajectories[0].assignment.instruction_id,
                em=score.em,
                n=score.n,
                by_stratum={name: list(value) for name, value in score.by_stratum.items()},
            )
            journal.trajectories(step, f"evaluate_{when}", trajectories)
        return score

    def _initial(self, joint: TRLJoint) -> Prompt:
        return Prompt(self._config.instruction or joint.parts.environment.initial_instruction)

    def _before(self) -> Score | None:
        """The score before training, also of an attempt that was cut off."""
        for row in self._run.read_events():
            if row["kind"] == "evaluated" and row.get("when") == "before":
                strata = {name: (em, n) for name, (em, n) in row["by_stratum"].items()}
                return Score(row["em"], row["n"], strata)
        return None


class RolloutBudget(TrainerCallback):
    """Ends training when another batch would exceed `training.rollout_budget`."""

    def __init__(self, joint: TRLJoint, ledger: Ledger, config: RunConfig) -> None:
        self._joint, self._ledger = joint, ledger
        self._budget = config.training.rollout_budget
        self._batch = config.training.questions_per_step * config.training.group_size

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._budget is None:
            return
        spent = None
        if self._joint.coordinator.comm.rank == 0:
            spent = policy_rollouts(self._ledger.totals().rollouts)
        spent = self._joint.coordinator.comm.broadcast(spent)
        if spent + self._batch > self._budget:
            control.should_training_stop = True


def policy_rollouts(by_purpose: Mapping[str, int]) -> int:
    """Rollouts that a method has to pay for: all but evaluation."""
    return sum(count for purpose, count in by_purpose.items() if purpose != "evaluate")


def evaluate_best(config: RunConfig, run: RunDir, split: str) -> list[tuple[str, Score | None]]:
    """Scores the kept policy under its instruction and under the initial one; writes no ledger."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    kept = json.loads((run.best_path / "best.json").read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(run.best_path)
    model = AutoModelForCausalLM.from_pretrained(run.best_path).eval()
    environment = build_environment(config)
    codec = HFCodec(tokenizer)

    def policy() -> contextlib.nullcontext[Any]:
        return contextlib.nullcontext(model)

    with Ledger(":memory:") as ledger:
        ledger.begin_attempt(None)
        coordinator = Coordinator(
            strategy=StaticStrategy(kept["instruction"]),
            environment=environment,
            codec=codec,
            sampler=policy_sampler(policy, codec, tokenizer),
            llm=build_llm(config, ledger),
            journal=run,
            meter=ledger,
            settings=RolloutSettings(config.limits, config.training.temperature, config.seed),
        )
        initial = config.instruction or environment.initial_instruction
        tasks = environment.tasks(split)
        return [
            ("best instruction", score_trajectories(coordinator.evaluate(tasks))),
            (
                "initial instruction",
                score_trajectories(coordinator.evaluate(tasks, Prompt(initial))),
            ),
        ]
