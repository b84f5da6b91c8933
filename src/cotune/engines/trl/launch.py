"""The launch: whether each process has its own GPU."""

import os
from typing import TYPE_CHECKING, TypeVar

import torch

from cotune.errors import ConfigError

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from cotune.config.run_file import TrainingConfig


Args = TypeVar("Args", bound="TrainingArguments")


def check_launch(training: "TrainingConfig") -> None:
    """Raise ConfigError if a run file's processes do not fit the GPUs that they see."""
    if training.engine_args.get("use_cpu"):
        return
    gpus = torch.cuda.device_count()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if world == 1 and gpus > 1 and not training.single_gpu:
        raise ConfigError(
            f"{_one_of(gpus, '-m cotune train RUN.yaml')}, or set training.single_gpu: true to train "
            "on the first"
        )
    if 0 < gpus < here:
        raise ConfigError(
            f"{here} processes were started on this machine, but it shows {gpus} GPU"
            f"{'' if gpus == 1 else 's'}; expected one a process: torchrun --nproc_per_node {gpus}, "
            "or see CUDA_VISIBLE_DEVICES"
        )


def check_devices(args: "TrainingArguments") -> None:
    """Raise ConfigError if the trainer would split its batches over GPUs within one process."""
    if args.n_gpu > 1:
        raise ConfigError(_one_of(args.n_gpu, "your_script.py"))


def held_to_one_gpu(args: Args) -> Args:
    """Return the same arguments, with which the trainer uses the first GPU alone.

    It wraps the model in DataParallel where it counts several. Trainer sets the same field to 1
    where a model is split over GPUs.
    """
    if args.n_gpu > 1:
        args._n_gpu = 1
    return args


def _one_of(gpus: int, program: str) -> str:
    return (
        f"one process sees {gpus} GPUs and would split its batches over them (DataParallel); start "
        f"one process a GPU: torchrun --nproc_per_node {gpus} {program}, or show it one: "
        "CUDA_VISIBLE_DEVICES=0"
    )
