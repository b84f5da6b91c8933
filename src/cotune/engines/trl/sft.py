"""Supervised fine-tuning of a run file on TRL's SFTTrainer.

A run evaluates the initial policy, prepares its rows, and fits them. The first two are recorded
under step 0; each later step is an optimizer step.
"""

import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from transformers import PreTrainedModel, TrainerCallback, TrainerState
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from trl import GRPOConfig, SFTConfig, SFTTrainer

from cotune.config.cost import accumulation
from cotune.config.run_checks import check_tokens
from cotune.config.run_file import RunConfig, TrainingConfig
from cotune.engines.evaluation import Outcome, RunEvaluation
from cotune.engines.joint import Parts, run_parts
from cotune.engines.trl.checkpoints import load_state
from cotune.engines.trl.checks import check_devices, check_named_parts, on_one_gpu
from cotune.engines.trl.grpo import TRLBest, lost_steps
from cotune.engines.trl.learning_rate import ResumedRate
from cotune.engines.trl.run_file_setup import (
    SHARED_FIELDS,
    Setup,
    check_known,
    check_set_elsewhere,
    shared_args,
)
from cotune.engines.trl.sft_rows import (
    ROWS,
    Rows,
    answer_rows,
    read_head,
    read_rows,
    rollout_rows,
    write_rows,
)
from cotune.engines.trl.trackers import close_reports, report_scores, tensorboard_into
from cotune.engines.trl.trl_run import CheckpointCallback, TRLRun
from cotune.engines.undamaged import Chosen
from cotune.errors import ConfigError, EngineError
from cotune.methods.sft import SFTOptions, TrainingRow, optimizer_steps
from cotune.policy.adapters import compute_as_base
from cotune.policy.codec import HFCodec
from cotune.policy.sampling import policy_sampler
from cotune.protocols import State
from cotune.rollout.coordinator import Coordinator, RolloutSettings
from cotune.rollout.task_order import TaskOrder
from cotune.run.journal import Journal
from cotune.run.ledger import Ledger
from cotune.run.run_dir import RunDir

_TOKENS = "rows are tokens already, the targets among them marked, and none is cut or joined"
_OUR_TOKENS = (
    "dataset_text_field", "dataset_kwargs", "dataset_num_proc", "eos_token", "pad_token",
    "chat_template_path", "max_length", "truncation_mode", "packing", "packing_strategy",
    "eval_packing", "completion_only_loss", "assistant_only_loss", "remove_unused_columns",
)  # fmt: skip
_ELSEWHERE = {
    **SHARED_FIELDS,
    "max_steps": "strategy.epochs",
    "num_train_epochs": "strategy.epochs",
}
_ONE_PROCESS = ("fsdp", "fsdp_config", "deepspeed", "parallelism_config")


def sft_config(config: RunConfig, folder: Path) -> SFTConfig:
    """Return the SFTConfig of a run file with `strategy.kind` sft.

    Raises:
        ConfigError: a field that SFTConfig lacks, or that would train on other tokens.
    """
    training, options = config.training, config.strategy
    assert isinstance(options, SFTOptions)
    check_engine_args(training.engine_args)
    values: dict[str, Any] = {
        **shared_args(config, folder),
        "num_train_epochs": options.epochs,
        "gradient_accumulation_steps": accumulation(training),
        "save_steps": max(1, training.save_every),
        "max_length": None,
        "packing": False,
        "dataset_kwargs": {"skip_prepare_dataset": True},
    }
    try:
        args = SFTConfig(**(values | training.engine_args))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"training.engine_args: {' '.join(str(error).split())}") from error
    check_named_parts(args)
    args = on_one_gpu(args) if training.single_gpu else args
    check_devices(args)
    return args


def check_engine_args(given: dict[str, Any]) -> None:
    """Raise ConfigError for the first field that fine-tuning rejects."""
    check_tokens(given)
    check_set_elsewhere(given, _ELSEWHERE)
    known = {one.name for one in fields(SFTConfig) if one.init}
    grpos = {one.name for one in fields(GRPOConfig) if one.init} - known
    for name in given:
        where = f"training.engine_args.{name}"
        if name in grpos:
            raise ConfigError(
                f"{where}: a field of GRPOConfig only, but strategy.kind sft trains with SFTTrainer; "
                "remove it"
            )
        if name in _OUR_TOKENS:
            raise ConfigError(f"{where}: {_TOKENS}; remove it")
        if name in _ONE_PROCESS:
            raise ConfigError(f"{where}: strategy.kind sft trains in one process; remove it")
    check_known(given, SFTConfig)


def check_one_process() -> None:
    """Raise ConfigError if torchrun has started several processes."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        raise ConfigError(
            f"{world} processes were started, but strategy.kind sft trains in one: start it without "
            "torchrun or accelerate launch, and show it one GPU with CUDA_VISIBLE_DEVICES=0"
        )


class TRLSft(TRLRun[SFTTrainer]):
    """One fine-tuning run: the policy, its coordinator, and after `bind` its trainer.

    Args:
        parts: strategy, environment and outputs.
        setup: the result of `prepare`.
        codec: of the policy.
        temperature: of rollouts.

    Its steps are optimizer steps.
    """

    def __init__(self, parts: Parts, setup: Setup, codec: HFCodec, temperature: float) -> None:
        self.parts, self.args = parts, setup.args
        self._model, self._tokenizer = setup.model, setup.tokenizer
        self._model.to(setup.args.device)
        tasks = TaskOrder(parts.environment.tasks("train"), 1, parts.seed)
        self._identity = {"the training tasks": tasks.fingerprint, **parts.identity}
        context = getattr(setup.model.config.get_text_config(), "max_position_embeddings", None)
        self.coordinator = Coordinator(
            strategy=parts.strategy,
            environment=parts.environment,
            codec=codec,
            sampler=policy_sampler(self.policy, codec, setup.tokenizer, self._casts),
            llm=parts.llm,
            journal=parts.journal,
            meter=parts.meter,
            settings=RolloutSettings(
                limits=parts.limits,
                temperature=temperature,
                seed=parts.seed,
                rows_per_call=parts.rows_per_call,
                context_tokens=context,
            ),
            rewards=parts.rewards,
        )

    @property
    def identity(self) -> dict[str, str]:
        return self._identity

    def bind(self, trainer: SFTTrainer) -> None:
        """Bind the trainer whose policy is sampled from now on."""
        self._trainer = trainer
        codec = self.coordinator.codec
        self.coordinator.sampler = policy_sampler(self.policy, codec, self._tokenizer, self._casts)

    def _casts(self) -> torch.autocast:
        """Return the trainer's autocast; the trainer itself comes later."""
        args = self.args
        return torch.autocast(args.device.type, torch.bfloat16, enabled=bool(args.bf16))

    @property
    def unwrapped(self) -> PreTrainedModel:
        """Return the current policy, which exists before its trainer."""
        return super().unwrapped if self.bound else self._model


class SFTCallback(CheckpointCallback[TRLSft]):
    """Evaluate between steps."""

    def __init__(self, joint: TRLSft, evaluation: RunEvaluation) -> None:
        super().__init__(joint)
        self._evaluation = evaluation

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._joint.record_under(state.global_step + 1)
        if state.global_step:
            self._evaluation(self._joint, state.global_step)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._joint.batches = state.global_step
        super().on_step_end(args, state, control)

    def _own_metrics(self, state: TrainerState) -> dict[str, float]:
        return {"total_steps": float(state.max_steps)}


def train(
    config: RunConfig,
    run: RunDir,
    journal: Journal,
    setup: Setup,
    chosen: Chosen | None = None,
) -> Outcome:
    """Fine-tune to the end; evaluate and keep the best.

    A run that was stopped before its first checkpoint reuses the rollouts it already has.

    Args:
        config: the run file.
        run: the run folder.
        journal: the folder, or a wrapper that also displays events.
        setup: the result of `prepare`.
        chosen: what `choose` found; None for a run from the start.
    """
    evaluation = RunEvaluation(
        config.evaluation,
        config.instruction,
        run,
        TRLBest(run.best_path, setup.tokenizer),
        report_scores,
        last=True,
    )
    with Ledger(run.ledger_path) as ledger:
        codec = HFCodec(setup.tokenizer, config.policy.template_args)
        parts = run_parts(config, setup.environment, codec, setup.rewards, journal, ledger)
        joint = TRLSft(parts, setup, codec, config.training.temperature)
        checkpoint = _begin(joint, config, run, evaluation, chosen)
        if checkpoint is None and (text := lost_steps(setup)):
            journal.event("notice", 0, text=text)
        rows = _rows(joint, config, run, evaluation)
        trainer = build_trainer(joint, setup, rows, SFTCallback(joint, evaluation))
        joint.bind(trainer)
        if checkpoint and (kept := run.read_metrics()):
            # TRL begins to count anew.
            trainer._total_train_tokens = int(kept[-1].get("num_tokens", 0))
        tensorboard_into(joint, run.path / "tensorboard")
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        outcome = evaluation.finish(joint)
        close_reports(joint)
        return outcome


def build_trainer(
    joint: TRLSft, setup: Setup, rows: Sequence[TrainingRow], callback: TrainerCallback
) -> SFTTrainer:
    """Build an SFTTrainer on rows of tokens, without progress output."""
    trainer = SFTTrainer(
        setup.model,
        args=setup.args,
        train_dataset=Dataset.from_dict(
            {
                "input_ids": [list(row.input_ids) for row in rows],
                "labels": [list(row.labels) for row in rows],
            }
        ),
        processing_class=setup.tokenizer,
        peft_config=setup.adapter,
        callbacks=[callback, ResumedRate()],
    )
    compute_as_base(trainer.model)
    for shown in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(shown)
    return trainer


def _begin(
    joint: TRLSft,
    config: RunConfig,
    run: RunDir,
    evaluation: RunEvaluation,
    chosen: Chosen | None,
) -> Path | None:
    """Start an attempt; return the checkpoint to resume from, if there is one."""
    journal, meter = joint.parts.journal, joint.parts.meter
    joint.chosen, resume = chosen, chosen is not None
    if chosen is not None and (checkpoint := chosen.path) is not None:
        step = int(checkpoint.name.removeprefix("checkpoint-"))
        joint.resume(cast(State, load_state(run.checkpoints_path, step)))
        chosen.set_aside()
        return checkpoint
    if resume:
        evaluation.forget()
    if resume and (run.sft_path / ROWS).is_file():
        joint.go_on_from(0, read_head(run.sft_path / ROWS))
        return None
    meter.begin_attempt(None)
    if resume:
        journal.cut_back(-1)
        journal.event("notice", 0, text="no complete checkpoint: the run starts from the beginning")
    journal.event("run_started", 0, config=config.name, strategy=config.strategy.kind)
    return None


def _rows(
    joint: TRLSft, config: RunConfig, run: RunDir, evaluation: RunEvaluation
) -> Sequence[TrainingRow]:
    """Return the rows to fit: those kept, or new ones after evaluating the initial policy."""
    options, training = config.strategy, config.training
    assert isinstance(options, SFTOptions)
    kept = run.sft_path / ROWS
    if kept.is_file():
        rows = read_rows(kept)
        joint.check_identity(read_head(kept))
        return rows
    if joint.batches and options.data == "rollouts":
        raise EngineError(
            f"{kept} is not there, but {joint.batches} steps are trained on its rows: put it back, or "
            "start a new run"
        )
    if joint.batches:
        return answer_rows(joint).rows
    joint.record_under(0)
    evaluation(joint, 0)
    if options.data == "answers":
        found = answer_rows(joint)
    else:
        found = rollout_rows(joint, options, training)
    _tell(joint, options, training, found)
    if options.data == "rollouts":
        write_rows(kept, found.rows, joint.identity, joint.parts.changeable)
    return found.rows


def _tell(joint: TRLSft, options: SFTOptions, training: TrainingConfig, found: Rows) -> None:
    """Record which rows are fitted."""
    rows = found.rows
    joint.parts.journal.event(
        "training_rows",
        0,
        data=options.data,
        rows=len(rows),
        questions=len({row.task for row in rows}),
        tokens=sum(row.targets for row in rows),
        steps=optimizer_steps(
            len(rows), options.epochs, training.micro_batch_size, accumulation(training)
        ),
        **found.about,
    )
    if options.data == "answers" and found.about["reward_mean"] == 0:
        joint.parts.journal.event(
            "notice",
            0,
            text="the references score 0 under the run's own reward: make sure they are in the form "
            "that it takes",
        )
