"""veRL as an `Engine`: its trainer on Ray, in processes of its own."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version
from rich.console import Console

from cotune.config.run_file import RunConfig
from cotune.engines.engine import Conclude, check_package, newest_numbered
from cotune.engines.memory import MemoryEstimate
from cotune.errors import ConfigError
from cotune.run.journal import Journal
from cotune.run.run_dir import RunDir
from cotune.utils.packages import installed

if TYPE_CHECKING:
    from cotune.engines.measured_steps import Measured
    from cotune.engines.verl.run import VerlSetup

BREAKS_VERL = Version("1.16")
"""From this TRL on, veRL 0.9 fails at import beside it: it asks any TRL for a class that is gone."""


class VeRL:
    """Trains in Ray actors; `conclude` runs in one of them, so it has to be a module's function."""

    def check_installed(self) -> None:
        check_package("verl")
        if clash := together():
            raise ConfigError(
                f"training.engine is verl, but {clash}: pip install 'cotune[verl]' into an environment "
                "without trl"
            )

    def prepare(self, config: RunConfig, folder: Path) -> "VerlSetup":
        from cotune.engines.verl import run

        return run.prepare(config, folder)

    def train(
        self,
        config: RunConfig,
        run: RunDir,
        setup: "VerlSetup",
        console: Console,
        conclude: Conclude,
    ) -> None:
        from cotune.engines.verl.run import train

        train(config, run, False, setup, console, conclude)

    def resume(
        self,
        config: RunConfig,
        run: RunDir,
        setup: "VerlSetup",
        console: Console,
        conclude: Conclude,
    ) -> None:
        from cotune.engines.verl.run import train

        train(config, run, True, setup, console, conclude)

    def checkpoint_step(self, config: RunConfig, folder: Path) -> int | None:
        return newest_numbered(folder, "global_step_")

    def memory(self, config: RunConfig, processes: int = 1) -> MemoryEstimate:
        from cotune.engines.verl.memory import estimate

        return estimate(config)

    def measure(
        self, config: RunConfig, run: RunDir, journal: Journal, setup: "VerlSetup", steps: int
    ) -> "Measured":
        raise ConfigError(
            "--steps: steps are not timed with training.engine verl; leave it out, or set "
            "training.engine: trl"
        )

    def dry_run_args(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {}


def together() -> str | None:
    """Say in a line that TRL and veRL cannot be used from one environment; None if they can."""
    trl, verl = installed("trl"), installed("verl")
    if trl is None or verl is None or Version(trl) < BREAKS_VERL:
        return None
    return f"trl {trl} and verl {verl} are installed together, and veRL fails at import then"


ENGINE = VeRL()
