"""TRL's GRPOTrainer as an `Engine`."""

import os
import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from cotune.config.run_file import RunConfig, TrainingConfig
from cotune.engines.engine import Engine, check_package
from cotune.engines.estimate import Layout, memory_of, shape_of
from cotune.engines.preflight import Check, Notice, Preflight
from cotune.errors import EngineError
from cotune.utils.packages import installed
from cotune.utils.progress import begin
from cotune.utils.text import one_line, size

if TYPE_CHECKING:
    from cotune.engines.engine import Measured
    from cotune.engines.trl.joint_trainer import JointTrainer


class TRL(Engine):
    """Train in this process, or in the processes that torchrun or accelerate started."""

    def check_installed(self) -> None:
        check_package("trl")

    def installation(self) -> str:
        begin("loading TRL")
        try:
            from cotune.engines.trl.trl_release import SUPPORTED, check_trl
        except ImportError as error:
            raise EngineError(
                f"engine trl: {one_line(str(error))}; install trl and what it imports"
            ) from error
        check_trl()
        oldest, newest = SUPPORTED
        return f"engine trl: {installed('trl')}, in the range >={oldest},<{newest}, hooks found"

    def check(self, checked: Preflight) -> list[Check]:
        config = checked.config
        needs = ("training.engine",)
        return [
            Check(
                "processes",
                partial(processes, config.training, checked.starting),
                here=True,
                needs=needs,
            ),
            Check("training", partial(arguments, config), here=True, needs=needs),
            Check("GPU memory", partial(gpu_memory, config), here=True, needs=needs),
        ]

    def prepare(self, checked: Preflight, console: Console) -> "JointTrainer":
        from cotune.engines.trl.run_file_setup import build_trainer

        return build_trainer(checked, console)

    def train(self, setup: "JointTrainer", *, resume: bool) -> None:
        setup.train(resume_from_checkpoint=resume)

    def layout(self, config: RunConfig, processes: int = 1) -> Layout:
        args = config.training.engine_args
        fsdp = bool(args.get("fsdp"))
        zero = bool(args.get("deepspeed"))
        layout = Layout(
            processes,
            shards=processes if fsdp else 1,
            zero=processes if zero else 1,
            dtype="float32" if fsdp else None,
        )
        if not args.get("use_vllm"):
            return layout
        if args.get("vllm_mode") == "server":
            return replace(layout, share=0.0)
        share = float(args.get("vllm_gpu_memory_utilization", 0.3))
        return replace(
            layout,
            share=share,
            kept=0.0 if args.get("vllm_enable_sleep_mode") else share,
        )

    def measure(self, setup: "JointTrainer", steps: int) -> "Measured":
        from cotune.engines.trl.run_file_setup import measure_steps

        return measure_steps(setup, steps)


def arguments(config: RunConfig) -> str:
    """Check that TRL accepts the trainer's arguments for any number of processes.

    Raises:
        ConfigError: an argument is invalid; the message names it.
        EngineError: the installed TRL version is not supported.
    """
    begin("loading TRL")
    from cotune.engines.trl.checks import check_args
    from cotune.engines.trl.run_file_setup import grpo_config
    from cotune.engines.trl.trl_release import check_trl

    check_trl()
    folder = config.output / "checkpoints"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of libraries about each other
        check_args(grpo_config(config, folder))
    return "training: TRL takes these arguments"


def processes(training: TrainingConfig, starting: bool = False) -> str | None:
    """Check that the processes match the GPUs.

    Args:
        starting: whether these processes will train, as opposed to those of `cotune doctor`.

    Raises:
        ConfigError: the number of started processes does not match the GPUs.
    """
    begin("loading PyTorch")
    import torch

    from cotune.engines.trl.checks import check_launch

    if starting or "WORLD_SIZE" in os.environ or training.single_gpu:
        check_launch(training)
        return None
    gpus = torch.cuda.device_count()
    if gpus < 2:
        return None
    start = f"torchrun --nproc_per_node {gpus} -m cotune train RUN.yaml"
    return f"processes: {gpus} GPUs are visible; start one process for each: {start}"


def gpu_memory(config: RunConfig) -> str | None:
    """Compare the plan's estimate with a GPU's memory, if there is a GPU."""
    import torch

    if not torch.cuda.device_count():
        return None
    alone = 1 if config.training.single_gpu else torch.cuda.device_count()
    layout = ENGINE.layout(config, int(os.environ.get("WORLD_SIZE", alone)))
    try:
        memory = memory_of(config, shape_of(config.policy), layout)
    except ValueError:
        return None
    total = torch.cuda.get_device_properties(0).total_memory
    needed = max(memory.training + round(layout.kept * total), memory.sampling or 0)
    need = f"GPU memory: at most {size(needed)} of {size(total)} are needed"
    if needed <= total:
        return need
    fix = "lower training.micro_batch_size, training.rows_per_call or the limits; or LoRA"
    raise Notice(f"{need}; {fix}")


ENGINE = TRL()
