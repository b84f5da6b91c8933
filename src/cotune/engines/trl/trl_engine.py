"""TRL as an `Engine`: GRPOTrainer, or SFTTrainer for strategy.kind sft."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cotune.config.run_file import RunConfig
from cotune.engines.engine import Conclude, check_package, newest_numbered
from cotune.engines.memory import MemoryEstimate
from cotune.run.console import RunJournal
from cotune.run.journal import Journal, SilentJournal
from cotune.run.run_dir import RunDir

if TYPE_CHECKING:
    from cotune.engines.evaluation import Outcome
    from cotune.engines.measured_steps import Measured
    from cotune.engines.trl.setup import Loaded, Setup


class TRL:
    """Trains in this process, or in those that torchrun or accelerate started."""

    def check_installed(self) -> None:
        check_package("trl")

    def prepare(self, config: RunConfig, folder: Path) -> "Loaded":
        if config.method.supervised:
            from cotune.engines.trl import sft

            return sft.prepare(config, folder)
        from cotune.engines.trl import setup

        return setup.prepare(config, folder)

    def train(
        self, config: RunConfig, run: RunDir, setup: "Loaded", console: Console, conclude: Conclude
    ) -> None:
        self._run(config, run, setup, console, conclude, resume=False)

    def resume(
        self, config: RunConfig, run: RunDir, setup: "Loaded", console: Console, conclude: Conclude
    ) -> None:
        self._run(config, run, setup, console, conclude, resume=True)

    def _run(
        self,
        config: RunConfig,
        run: RunDir,
        setup: "Loaded",
        console: Console,
        conclude: Conclude,
        *,
        resume: bool,
    ) -> None:
        """Train; the first process writes it down, shows it and concludes it."""
        from cotune.engines.comm import world

        if world().rank != 0:
            self._outcome(config, run, SilentJournal(), setup, resume)
            return
        journal = RunJournal(run, console, config.training.steps, config.logging.trajectories_every)
        outcome = self._outcome(config, run, journal, setup, resume)
        conclude(config, run, journal, outcome, setup.environment, console)

    def _outcome(
        self, config: RunConfig, run: RunDir, journal: Journal, setup: Any, resume: bool
    ) -> "Outcome":
        if config.method.supervised:
            from cotune.engines.trl import sft

            return sft.train(config, run, journal, resume, setup)
        from cotune.engines.trl import run as grpo

        return grpo.train(config, run, journal, resume, setup)

    def checkpoint_step(self, config: RunConfig, folder: Path) -> int | None:
        newest = newest_numbered(folder, "checkpoint-")
        return None if newest is None else newest // config.training.optimizer_steps

    def memory(self, config: RunConfig, processes: int = 1) -> MemoryEstimate:
        from cotune.engines.trl.memory_sharding import estimate

        return estimate(config, processes)

    def measure(
        self, config: RunConfig, run: RunDir, journal: Journal, setup: "Setup", steps: int
    ) -> "Measured":
        from cotune.engines.trl.measure import measure_steps

        return measure_steps(config, run, journal, setup, steps)

    def dry_run_args(self, given: Mapping[str, Any]) -> dict[str, Any]:
        from cotune.engines.trl.setup import dry_run_args

        return dry_run_args(dict(given))


ENGINE = TRL()
