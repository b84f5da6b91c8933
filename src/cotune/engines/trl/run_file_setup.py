"""Build the trainer of a run file: its policy, and the fields of GRPOConfig; write nothing. Time its steps."""

import os
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import TrainerCallback, TrainerState
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from trl import GRPOConfig

from cotune.config.run_file import RunConfig
from cotune.engines.engine import Measured
from cotune.engines.joint import settings_of
from cotune.engines.preflight import Preflight
from cotune.engines.run_start import joint_method_of
from cotune.engines.trl.checks import LOSSES, check_named_parts, on_one_gpu, steps_per_batch
from cotune.engines.trl.joint_trainer import JointTrainer
from cotune.engines.trl.policy_update import PolicyUpdate
from cotune.engines.trl.trl_joint import TRLJoint
from cotune.errors import ConfigError
from cotune.methods.method import CISPO_CAP
from cotune.policy.adapters import lora_config
from cotune.policy.local_policy import load_model
from cotune.policy.policy_files import is_adapter, policy_path
from cotune.policy.precision import autocast, weights_dtype
from cotune.run.run_dir import RunDir
from cotune.utils.progress import begin
from cotune.utils.text import did_you_mean


def build_trainer(checked: Preflight, console: Console) -> JointTrainer:
    """Load everything a run needs and build its trainer; write nothing and create no folder.

    Processes started by torchrun are connected afterwards.
    """
    config = checked.config
    rewards = checked.rewards
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if rewards is not None:
        steps = config.training.steps * config.training.optimizer_steps
        rewards.trainer_state = TrainerState(max_steps=steps)
    path = policy_path(config.policy.path)
    if is_adapter(path):
        raise ConfigError(
            f"policy.path: {path!r} holds an adapter, but training starts from whole weights; merge it "
            "into its base (cotune export RUN_FOLDER --merge) and name that folder"
        )
    begin("loading the policy")
    model = load_model(path, weights_dtype(config.policy, config.training.precision))
    lora = config.policy.lora
    adapter = None if lora is None else lora_config(lora)
    args = grpo_config(config, RunDir(config.output.absolute()).checkpoints_path)
    begin("setting up the trainer")
    trainer = JointTrainer(
        model,
        rewards,
        args,
        processing_class=checked.codec.tokenizer,
        peft_config=adapter,
        method=joint_method_of(config),
        environment=checked.environment,
        limits=config.limits,
        settings=settings_of(config, console, tuple(checked.llm_calls)),
    )
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    return trainer


def grpo_config(config: RunConfig, folder: Path) -> GRPOConfig:
    """Return a run file's GRPOConfig; `training.engine_args` overrides everything."""
    training = config.training
    limits = config.limits
    check_engine_args(training.engine_args)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rows = training.questions_per_step * training.group_size
    per_pass = training.micro_batch_size * world
    if rows % (training.optimizer_steps * per_pass):
        raise ConfigError(
            f"training.micro_batch_size is {training.micro_batch_size} on {world} processes; "
            f"expected a divisor of {rows} / {training.optimizer_steps} / {world}"
        )
    accumulation = rows // (training.optimizer_steps * per_pass)
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": training.micro_batch_size,
        "max_steps": training.steps * training.optimizer_steps,
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": rows // per_pass,
        "num_generations": training.group_size,
        "max_completion_length": limits.trajectory_tokens,
        "learning_rate": 0.0 if training.frozen else training.learning_rate,
        "lr_scheduler_type": training.schedule,
        "warmup_steps": training.warmup,
        "beta": 0.0 if training.frozen else training.kl,
        # The paper's estimator, and veRL's: TRL multiplies it by the importance ratio unless told otherwise.
        "use_bias_correction_kl": False,
        "epsilon": training.clip,
        "loss_type": config.method.loss,
        "temperature": training.temperature,
        "top_k": 0,
        "shuffle_dataset": False,
        "seed": config.seed,
        "data_seed": config.seed,
        "logging_steps": 1,
        "save_strategy": "steps" if training.save_every else "no",
        "save_steps": max(1, training.save_every) * training.optimizer_steps,
        "save_total_limit": training.keep_checkpoints,
        "report_to": list(config.logging.report_to) or "none",
        "run_name": config.name,
        "project": "cotune",
        "disable_tqdm": True,
        "ddp_find_unused_parameters": False,
        "chat_template_kwargs": config.policy.template_args or None,
        "log_completions": False,
    }
    if training.engine_args.get("loss_type", config.method.loss) == "cispo":
        values["epsilon_high"] = CISPO_CAP  # bounds the ratio itself, not its change
    casts = autocast(config.policy, training.precision)
    if casts is not None:
        values["bf16"] = casts
    if not torch.cuda.is_available():
        values |= {"use_cpu": True, "gradient_checkpointing": False}
    if values["beta"] and config.policy.lora is None:
        # TRL would load the reference policy in float32, spread over all GPUs.
        dtype = weights_dtype(config.policy, training.precision)
        values["model_init_kwargs"] = {"dtype": dtype, "device_map": None}
    if training.engine_args.get("use_vllm"):
        # vLLM reserves memory for the longest episode.
        values["vllm_max_model_length"] = limits.prompt_tokens + limits.trajectory_tokens
    try:
        args = GRPOConfig(**(values | training.engine_args))
    except (ImportError, KeyError, OSError, TypeError, ValueError) as error:
        raise ConfigError(f"training.engine_args: {' '.join(str(error).split())}") from error
    check_named_parts(args)
    return on_one_gpu(args) if training.single_gpu else args


def check_engine_args(engine_args: dict[str, Any]) -> None:
    """Raise ConfigError for fields that GRPOConfig lacks or that are set elsewhere, and for an unknown loss."""
    for name in engine_args:
        if name in _SET_ELSEWHERE:
            raise ConfigError(
                f"training.engine_args.{name}: set elsewhere; remove it and set {_SET_ELSEWHERE[name]}"
            )
    if (loss := engine_args.get("loss_type", "grpo")) not in LOSSES:
        raise ConfigError(
            f"training.engine_args.loss_type is {loss!r}; expected one of {', '.join(LOSSES)}"
        )
    field_names = [field.name for field in fields(GRPOConfig) if field.init]
    for name in engine_args:
        if name not in field_names:
            raise ConfigError(
                f"training.engine_args.{name}: unknown field of GRPOConfig{did_you_mean(name, field_names)}; "
                "remove it or correct its name"
            )


_SET_ELSEWHERE = {
    "learning_rate": "training.learning_rate",
    "lr_scheduler_type": "training.schedule",
    "warmup_steps": "training.warmup",
    "warmup_ratio": "training.warmup",
    "seed": "seed",
    "data_seed": "seed",
    "save_strategy": "training.save_every",
    "save_steps": "training.save_every",
    "save_total_limit": "training.keep_checkpoints",
    "output_dir": "output",
    "eval_strategy": "evaluation.every",
    "eval_on_start": "evaluation.before",
    "load_best_model_at_end": "evaluation.every, which keeps the best policy",
    "per_device_train_batch_size": "training.micro_batch_size",
    "gradient_accumulation_steps": "training.questions_per_step, group_size and mini_batches",
    "max_steps": "training.steps",
    "num_train_epochs": "training.steps",
    "num_generations": "training.group_size",
    "steps_per_generation": "training.questions_per_step, group_size and mini_batches",
    "generation_batch_size": "training.questions_per_step and group_size",
    "temperature": "training.temperature",
    "beta": "training.kl",
    "epsilon": "training.clip",
    "max_completion_length": "limits.trajectory_tokens",
    "chat_template_kwargs": "policy.template_args",
    "hub_token": "the environment variable HF_TOKEN, as the run file is stored with the run",
}
"""GRPOTrainer's arguments that a run file has fields for: the plan, the record and a resume use those."""


def measure_steps(trainer: JointTrainer, steps: int) -> Measured:
    """Train the first steps of a run file, as `train` would, without evaluation or checkpoints.

    The schedule is that of the whole run. Evolution and its LLM calls run when they are due.
    """
    watch = _Stopwatch(steps)
    with trainer.record_run(resume=False, steps=steps) as record:
        trainer.joint.before_rollout = watch.end_evolution
        trainer.add_callback(watch)
        PolicyUpdate.train(trainer)
        totals = record.totals()
    gpu_memory = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else None
    return Measured(tuple(watch.steps), totals, gpu_memory)


class _Stopwatch(TrainerCallback):
    """Time rollout batches, and end training after a number of them."""

    def __init__(self, count: int) -> None:
        self.steps: list[tuple[float, float]] = []
        self._count = count
        self._began = 0.0
        self._evolved = 0.0

    def end_evolution(self, joint: TRLJoint, trained: int) -> None:
        """Record the time of the hook before a step's rollouts, on rank 0."""
        self._evolved = time.monotonic()

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        if state.global_step % steps_per_batch(args) == 0:
            self._began = self._evolved = time.monotonic()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        if state.global_step % steps_per_batch(args):
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.steps.append((self._evolved - self._began, time.monotonic() - self._evolved))
        if len(self.steps) >= self._count:
            control.should_training_stop = True
