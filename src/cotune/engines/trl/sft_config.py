"""SFTConfig of a run file, and what of `training.engine_args` a fine-tuning run refuses."""

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from trl import GRPOConfig, SFTConfig

from cotune.config.cost import accumulation
from cotune.config.run_file import RunConfig
from cotune.engines.trl.launch import check_devices, held_to_one_gpu
from cotune.engines.trl.setup import check_known, check_not_ours, shared_args
from cotune.errors import ConfigError
from cotune.methods.sft import SFTOptions

_TOKENS = "rows are tokens already, the targets among them marked, and none is cut or joined"
_OUR_TOKENS = (
    "dataset_text_field", "dataset_kwargs", "dataset_num_proc", "eos_token", "pad_token",
    "chat_template_path", "max_length", "truncation_mode", "packing", "packing_strategy",
    "eval_packing", "completion_only_loss", "assistant_only_loss", "remove_unused_columns",
)  # fmt: skip
_ELSEWHERE = {
    "max_steps": "strategy.epochs",
    "num_train_epochs": "strategy.epochs",
    "save_strategy": "training.save_every",
    "save_steps": "training.save_every",
    "per_device_train_batch_size": "training.micro_batch_size",
    "gradient_accumulation_steps": "training.questions_per_step, group_size and mini_batches",
}
_ONE_PROCESS = ("fsdp", "fsdp_config", "deepspeed", "parallelism_config")


def sft_config(config: RunConfig, folder: Path) -> SFTConfig:
    """TRL's configuration of a run file with `strategy.kind` sft.

    Raises:
        ConfigError: a field that SFTConfig does not take, or that would fit other tokens.
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
    args = held_to_one_gpu(args) if training.single_gpu else args
    check_devices(args)
    return args


def check_engine_args(given: dict[str, Any]) -> None:
    """Raises ConfigError for the first field that a fine-tuning run refuses."""
    check_not_ours(given)
    known = {field.name for field in fields(SFTConfig) if field.init}
    grpos = {field.name for field in fields(GRPOConfig) if field.init} - known
    for name in given:
        where = f"training.engine_args.{name}"
        if name in grpos:
            raise ConfigError(
                f"{where}: a field of GRPOConfig alone, but strategy.kind sft trains by SFTTrainer; "
                "remove it"
            )
        if name in _OUR_TOKENS:
            raise ConfigError(f"{where}: {_TOKENS}; remove it")
        if name in _ELSEWHERE:
            raise ConfigError(f"{where}: said elsewhere; remove it and set {_ELSEWHERE[name]}")
        if name in _ONE_PROCESS:
            raise ConfigError(f"{where}: strategy.kind sft trains in one process; remove it")
    check_known(given, SFTConfig)


def check_one_process() -> None:
    """Raises ConfigError where torchrun has started several."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        raise ConfigError(
            f"{world} processes were started, but strategy.kind sft trains in one: start it without "
            "torchrun or accelerate launch, and show it one GPU by CUDA_VISIBLE_DEVICES=0"
        )
