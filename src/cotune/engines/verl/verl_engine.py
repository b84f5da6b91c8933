"""veRL as an `Engine`: its trainer on Ray, in separate processes."""

from functools import partial
from importlib.metadata import requires
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.version import Version
from rich.console import Console

from cotune.config.run_file import RunConfig
from cotune.engines.engine import Engine, check_package
from cotune.engines.estimate import Layout
from cotune.engines.preflight import Check, Preflight
from cotune.engines.verl.arguments import layout_of
from cotune.errors import ConfigError
from cotune.utils.packages import installed, not_fitting

if TYPE_CHECKING:
    from cotune.engines.verl.run import VerlSetup

BREAKS_VERL = Version("1.16")
"""veRL 0.9 fails to import beside this TRL version or later ones: TRL removed a class it imports."""


class VeRL(Engine):
    """Train in Ray actors."""

    def check_installed(self) -> None:
        check_package("verl")
        if clash := together():
            raise ConfigError(
                f"training.engine is verl, but {clash}: pip install 'cotune[verl]' into an environment "
                "without trl"
            )

    def installation(self) -> str:
        """Check that the packages of cotune's extra are installed, and no TRL that breaks veRL."""
        requirements = [Requirement(text) for text in requires("cotune") or ()]
        wrong = [
            text
            for requirement in requirements
            if requirement.marker is not None
            and requirement.marker.evaluate({"extra": "verl"})
            and not requirement.marker.evaluate({"extra": ""})
            and (text := not_fitting(requirement))
        ]
        if clash := together():
            wrong.append(f"{clash}; use a separate environment for each")
        if wrong:
            raise ConfigError(f"engine verl: {', and '.join(wrong)}")
        return f"engine verl: verl {installed('verl')}, and what it needs"

    def check(self, checked: Preflight) -> list[Check]:
        look = partial(_arguments, checked.config)
        return [Check("training", look)]

    def prepare(self, checked: Preflight, console: Console) -> "VerlSetup":
        from cotune.engines.verl import run

        return run.prepare(checked, console)

    def train(self, setup: "VerlSetup", *, resume: bool) -> None:
        from cotune.engines.verl.run import train

        train(setup, resume=resume)

    def layout(self, config: RunConfig, processes: int = 1) -> Layout:
        return layout_of(config)


def _arguments(config: RunConfig) -> None:
    """Check the veRL fields of a run file, against veRL's own files if it is installed."""
    from cotune.engines.verl.arguments import checked_arguments

    folder = config.output.absolute()
    # Ray deletes its copy with the session's folder, on whichever node it is.
    if any(part.startswith("_ray_pkg_") for part in folder.parts):
        raise ConfigError(
            f"output: {folder} lies in the copy that Ray made of the job's --working-dir, and would be "
            "lost with it; expected an absolute path, where all nodes see it"
        )
    if installed("verl") is None or installed("hydra-core") is None:
        checked_arguments(config)
        return
    from cotune.engines.verl.settings import verl_config

    # How many GPUs there are, and the policy's context, are checked when the run is prepared.
    verl_config(config, config.output, 1, False)


def together() -> str | None:
    """Explain in one line why TRL and veRL cannot share an environment; return None if they can."""
    trl = installed("trl")
    verl = installed("verl")
    if trl is None or verl is None or Version(trl) < BREAKS_VERL:
        return None
    return f"trl {trl} and verl {verl} are installed together, and veRL then fails at import"


ENGINE = VeRL()
