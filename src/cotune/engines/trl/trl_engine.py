"""TRL's GRPOTrainer as an `Engine`."""

import warnings
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from cotune.config.run_file import RunConfig
from cotune.engines.engine import Engine, check_package
from cotune.engines.preflight import Check, Preflight
from cotune.errors import EngineError
from cotune.utils.packages import installed
from cotune.utils.progress import begin
from cotune.utils.text import one_line

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
            from cotune.engines.trl.checks import SUPPORTED, check_trl
        except ImportError as error:
            raise EngineError(
                f"engine trl: {one_line(str(error))}; install trl and what it imports"
            ) from error
        check_trl()
        oldest, newest = SUPPORTED
        return f"engine trl: {installed('trl')}, in the range >={oldest},<{newest}"

    def check(self, checked: Preflight) -> list[Check]:
        look = partial(arguments, checked.config, checked.starting)
        return [Check("training", look, here=True, needs=("training.engine",))]

    def prepare(self, checked: Preflight, console: Console) -> "JointTrainer":
        from cotune.engines.trl.run_file_setup import build_trainer

        return build_trainer(checked, console)

    def train(self, setup: "JointTrainer", *, resume: bool) -> None:
        setup.train(resume_from_checkpoint=resume)

    def measure(self, setup: "JointTrainer", steps: int) -> "Measured":
        from cotune.engines.trl.run_file_setup import measure_steps

        return measure_steps(setup, steps)


def arguments(config: RunConfig, starting: bool) -> str:
    """Check that TRL accepts the trainer's arguments, for as many processes as were started.

    Args:
        starting: whether these processes will train, as opposed to that of `cotune doctor`.
    """
    begin("loading TRL")
    from cotune.engines.trl.checks import check_args, check_trl, on_one_gpu
    from cotune.engines.trl.run_file_setup import grpo_config

    check_trl()
    folder = config.output / "checkpoints"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of libraries about each other
        args = grpo_config(config, folder)
        gpus = args.n_gpu
        check_args(args if starting else on_one_gpu(args))
    text = "training: TRL takes these arguments"
    if gpus < 2:
        return text
    start = f"torchrun --nproc_per_node {gpus} -m cotune train RUN.yaml"
    return f"{text}; start one process for each of the {gpus} GPUs: {start}"


ENGINE = TRL()
