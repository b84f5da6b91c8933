"""veRL as an `Engine`: its trainer on Ray, in separate processes."""

from functools import partial
from typing import TYPE_CHECKING

from packaging.version import Version
from rich.console import Console

from cotune.config.run_file import RunConfig
from cotune.engines.engine import Engine, check_package
from cotune.engines.estimate import Layout
from cotune.engines.preflight import Check, Preflight
from cotune.engines.verl.arguments import checked_arguments, layout_of
from cotune.errors import ConfigError
from cotune.utils.packages import installed

if TYPE_CHECKING:
    from cotune.engines.verl.hooks import VerlJoint

BREAKS_VERL = Version("1.16")
"""veRL 0.9 fails to import beside this TRL version or later ones: TRL removed a class it imports."""


class VeRL(Engine):
    """Train in Ray actors."""

    def check_installed(self) -> None:
        check_package("verl")
        trl = installed("trl")
        if trl is not None and Version(trl) >= BREAKS_VERL:
            raise ConfigError(
                f"engine verl: trl {trl} and verl {installed('verl')} are installed together, and veRL then fails "
                "at import: pip install 'cotune[verl]' into an environment without trl"
            )

    def installation(self) -> str:
        self.check_installed()
        return f"engine verl: verl {installed('verl')}"

    def check(self, checked: Preflight) -> list[Check]:
        return [Check("training", partial(_arguments, checked.config))]

    def prepare(self, checked: Preflight, console: Console) -> "VerlJoint":
        from cotune.engines.verl.run import prepare

        return prepare(checked, console)

    def train(self, setup: "VerlJoint", *, resume: bool) -> None:
        from cotune.engines.verl.run import train

        train(setup, resume=resume)

    def layout(self, config: RunConfig, processes: int = 1) -> Layout:
        return layout_of(config)


def _arguments(config: RunConfig) -> None:
    """Check the veRL fields of a run file, against veRL's own files if it is installed."""
    folder = config.output.absolute()
    # Ray deletes its copy with the session's folder, on whichever node it is.
    if any(part.startswith("_ray_pkg_") for part in folder.parts):
        raise ConfigError(
            f"output: {folder} lies in the copy that Ray made of the job's --working-dir, and would be "
            "lost with it; expected an absolute path, where all nodes see it"
        )
    if installed("verl") is None:
        checked_arguments(config)
        return
    from cotune.engines.verl.settings import verl_config

    # How many GPUs there are, and the policy's context, are checked when the run is prepared.
    verl_config(config, config.output, 1)


ENGINE = VeRL()
