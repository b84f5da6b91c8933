"""The seam between the commands and what trains: `Engine`, and how one is looked up by name.

To add an engine, write a package with a module that implements `Engine` as `ENGINE`, and name that
module in `cotune.utils.packages.ENGINES`. Nothing else compares an engine's name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console

from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError
from cotune.protocols import Environment
from cotune.run.journal import Journal
from cotune.run.ledger import Totals
from cotune.run.run_dir import RunDir
from cotune.utils.packages import ENGINES, installed

if TYPE_CHECKING:
    from cotune.engines.evaluation import Outcome
    from cotune.engines.memory import MemoryEstimate
    from cotune.engines.preflight import Check, Finding, Preflight

Conclude = Callable[[RunConfig, RunDir, Journal, "Outcome", Environment, Console], None]
"""Ends a run that has been trained: writes its summary, completes best/, reports."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step, in seconds.

    Attributes:
        evolution: before the rollouts: proposals and verification, where they fell due.
        rollouts: training rollouts.
        update: the rest: scoring, the forward and backward passes, the optimizer.
    """

    evolution: float
    rollouts: float
    update: float

    @property
    def training(self) -> float:
        return self.rollouts + self.update


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured.

    Attributes:
        steps: in order.
        totals: rollouts, tokens, seconds and LLM calls.
        memory: the most of this process's memory that was resident, in bytes; None if unknown.
        gpu_memory: the most that was reserved on this process's GPU, in bytes; None without one.
        gpu_total: what that GPU has, in bytes.
    """

    steps: Sequence[MeasuredStep]
    totals: Totals
    memory: int | None = None
    gpu_memory: int | None = None
    gpu_total: int | None = None

    @property
    def steady(self) -> Sequence[MeasuredStep]:
        """The steps that a projection goes by: the first warms up, so it counts only if alone."""
        return self.steps[1:] or self.steps

    @property
    def tokens_per_second(self) -> float:
        """Own tokens of training rollouts a second of rollouts."""
        return self.totals.generated_tokens["train"] / max(self.totals.seconds["train"], 1e-9)


class Engine(Protocol):
    """The trainer of a run file's weights.

    Constructing one and looking it up imports no library; each method imports what it needs.
    """

    def check_installed(self) -> None:
        """Raise ConfigError if this environment lacks what the engine imports."""
        ...

    def installation(self) -> "Sequence[Finding]":
        """Report whether the installed engine works here, for `cotune doctor`."""
        ...

    def check(self, checked: "Preflight") -> "Sequence[Check]":
        """Return the engine's own checks of a run file, for the preflight's list.

        Args:
            checked: the preflight that they are for; what it has built can be used.
        """
        ...

    def prepare(self, checked: "Preflight", folder: Path) -> Any:
        """Load what a run needs, weights included; write nothing.

        Args:
            checked: the run file, which has passed `check`.
            folder: where checkpoints will be kept, inside the run folder.

        Returns:
            What `train` and `resume` take as `setup`.

        Raises:
            ConfigError: names the field that cannot work.
        """
        ...

    def train(
        self, config: RunConfig, run: RunDir, setup: Any, console: Console, conclude: Conclude
    ) -> None:
        """Train to the end from the initial policy, evaluate, keep the best, and call `conclude`.

        Args:
            config: the run file.
            run: its folder, which exists and is locked.
            setup: what `prepare` returned for that folder.
            console: where to show progress; used by the first process alone.
            conclude: called once, in the process that holds the journal.
        """
        ...

    def resume(
        self, config: RunConfig, run: RunDir, setup: Any, console: Console, conclude: Conclude
    ) -> None:
        """Do the same from the newest whole checkpoint, or from the start if there is none."""
        ...

    def checkpoint_step(self, config: RunConfig, folder: Path) -> int | None:
        """Return how many steps the newest checkpoint in a folder contains; None without one."""
        ...

    def memory(self, config: RunConfig, processes: int = 1) -> "MemoryEstimate":
        """Estimate what a GPU needs at most.

        Args:
            config: the run file.
            processes: over which training is spread, if the run file asks for it.

        Raises:
            ValueError: says in a line why it is not known.
            ConfigError: a field of the run file cannot be read.
        """
        ...

    def measure(
        self, config: RunConfig, run: RunDir, journal: Journal, setup: Any, steps: int
    ) -> Measured:
        """Train the first steps without evaluating or saving, and time them.

        Raises:
            ConfigError: the engine cannot.
        """
        ...

    def dry_run_args(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `engine_args` that also apply to two small steps on TRL.

        Raises:
            ConfigError: a field that the engine does not take.
        """
        ...


def engine_named(name: str) -> Engine:
    """Return the engine of a value of `training.engine`."""
    return import_module(ENGINES[name]).ENGINE


def engine_of(config: RunConfig) -> Engine:
    """Return the engine of a run file."""
    return engine_named(config.training.engine)


def check_package(name: str) -> None:
    """Raise ConfigError unless the package of an engine is installed; suggest another engine."""
    if installed(name) is not None:
        return
    missing = f"training.engine is {name}, but {name} is not installed"
    if others := [other for other in ENGINES if installed(other)]:
        raise ConfigError(
            f"{missing}, and {others[0]} is: set training.engine: {others[0]}, or pip install "
            f"'cotune[{name}]' into another environment"
        )
    raise ConfigError(f"{missing}: pip install 'cotune[{name}]'")


def newest_numbered(folder: Path, prefix: str) -> int | None:
    """Return the highest number behind a prefix among the names in a folder; None without any."""
    if not folder.is_dir():
        return None
    names = (path.name for path in folder.iterdir() if path.name.startswith(prefix))
    numbers = (name.removeprefix(prefix) for name in names)
    return max((int(number) for number in numbers if number.isdigit()), default=None)
