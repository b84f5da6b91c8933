"""The interface between the commands and the trainers: `Engine`, and the lookup of engines by name.

To add one, write a module that defines an `Engine` as `ENGINE`, and add it to `cotune.utils.packages.ENGINES`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console

from cotune.config.build import run_policy
from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError
from cotune.run.costs import Totals
from cotune.utils.packages import ENGINES, install_engine, installed

if TYPE_CHECKING:
    from cotune.engines.preflight import Check, Preflight


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of the first steps of a run.

    Attributes:
        steps: the seconds of each step: of evolution before its rollouts, and of rollouts and update.
        gpu_memory: peak memory reserved on this process's GPU in bytes; None without a GPU.
    """

    steps: Sequence[tuple[float, float]]
    totals: Totals
    gpu_memory: int | None = None


class Engine(Protocol):
    """An engine that trains a run file's weights; the base class of each.

    Constructing or looking up an engine imports no library; each method imports what it needs.
    """

    open_policy = staticmethod(run_policy)
    """Open a policy outside of training, as `run_policy` does: loaded here, unless an engine has it elsewhere."""

    def check_installed(self) -> None:
        """Raise ConfigError if a package that the engine imports is missing."""
        ...

    def installation(self) -> str:
        """Return which version of the engine works here, for `cotune doctor`; raise ConfigError or EngineError."""
        ...

    def check(self, checked: "Preflight") -> "Sequence[Check]":
        """Return the engine's own checks of a run file; they can use what the preflight has built."""
        ...

    def prepare(self, checked: "Preflight", console: Console) -> Any:
        """Load everything that a checked run file needs, including weights; write nothing. Return the setup of `train`."""
        ...

    def train(self, setup: Any, *, resume: bool) -> None:
        """Train to the end, evaluate, keep the best, and conclude the run.

        Args:
            setup: the result of `prepare`.
            resume: continue from the newest complete checkpoint; else create the run folder.
        """
        ...

    def price(self, config: RunConfig, rollouts: Mapping[str, int]) -> str:
        """Return what a server charges at most for rollouts, counted by purpose, in a line; "" if none does."""
        return ""

    def measure(self, setup: Any, steps: int) -> Measured:
        """Train the first steps of what `prepare` made for a temporary folder, without evaluation, and time them."""
        raise ConfigError(
            "--steps: this engine does not time steps; leave it out, or set training.engine: trl"
        )


def engine_named(name: str) -> Engine:
    """Return the engine for a value of `training.engine`."""
    return import_module(ENGINES[name]).ENGINE


def engine_of(config: RunConfig) -> Engine:
    """Return the engine of a run file."""
    return engine_named(config.training.engine)


def check_package(name: str) -> None:
    """Raise ConfigError unless the package of an engine is installed."""
    if installed(name) is None:
        raise ConfigError(
            f"training.engine is {name}, but {name} is not installed: {install_engine(name)}"
        )
