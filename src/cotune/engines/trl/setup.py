"""A run file's policy, environment and GRPOConfig, loaded and checked before anything is written."""

import difflib
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from trl import GRPOConfig

from cotune.build import build_environment
from cotune.config import RunConfig
from cotune.contracts import ConfigError, Environment
from cotune.engines.codec import HFCodec
from cotune.engines.local_policy import load
from cotune.engines.trl.checks import check_args, check_trl
from cotune.policies import policy_path
from cotune.preflight import check_context, check_instruction, check_prompts


@dataclass(frozen=True)
class Setup:
    """What a run needs that can be wrong."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    environment: Environment
    args: GRPOConfig


def prepare(config: RunConfig, folder: Path) -> Setup:
    """Loads and checks what a run needs; writes nothing, makes no folder.

    Started by torchrun, the processes know each other afterwards.

    Args:
        config: the run file.
        folder: where checkpoints will be kept.

    Raises:
        ConfigError: names the field that cannot work.
    """
    check_trl()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    environment = build_environment(config)
    instruction = config.instruction or environment.initial_instruction
    check_instruction(environment, instruction)
    model, tokenizer = load_policy(config)
    check_context(
        getattr(model.config.get_text_config(), "max_position_embeddings", None), config.limits
    )
    check_prompts(
        environment,
        HFCodec(tokenizer),
        instruction,
        config.limits,
        ("train", "validation", "test"),
        strategy=config.strategy.kind,
    )
    args = grpo_config(config, folder)
    check_args(args)
    return Setup(model, tokenizer, environment, args)


def load_policy(config: RunConfig) -> tuple[Any, PreTrainedTokenizerBase]:
    """Model and tokenizer by `from_pretrained`; ConfigError names what could not be loaded."""
    return load(policy_path(config.policy.path), config.policy.dtype)


def grpo_config(config: RunConfig, folder: Path) -> GRPOConfig:
    """TRL's configuration of a run file; `training.engine_args` wins over everything."""
    training, limits = config.training, config.limits
    _check_engine_args(training.engine_args)
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
        "ddp_find_unused_parameters": False,
        "log_completions": False,
    }
    if not torch.cuda.is_available():
        values |= {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    try:
        return GRPOConfig(**(values | training.engine_args))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"training.engine_args: {' '.join(str(error).split())}") from error


def _check_engine_args(given: dict[str, Any]) -> None:
    """Raises ConfigError for what GRPOConfig does not take, and for what is not its to say."""
    known = [field.name for field in fields(GRPOConfig) if field.init]
    for name in given:
        if name == "output_dir":
            raise ConfigError(
                "training.engine_args.output_dir: a run's checkpoints are kept in its folder; "
                "remove it and set output"
            )
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(
                f"training.engine_args.{name}: unknown field of GRPOConfig{meant}; remove it or "
                "correct its name"
            )
