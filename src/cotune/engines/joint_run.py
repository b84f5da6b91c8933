"""A run that trains weights and prompt together, on any engine: its parts, progress and saved state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cotune.config.build import build_llm, build_strategy
from cotune.config.resuming import changeable, changes, identity, renewed
from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError
from cotune.policy.codec import HFCodec
from cotune.protocols import LLM, Environment, Rewards, State, Strategy
from cotune.rollout.coordinator import Coordinator
from cotune.rollout.task_order import TaskOrder
from cotune.run.journal import Journal, Meter
from cotune.run.ledger import Ledger
from cotune.types import Limits, Progress


@dataclass(frozen=True)
class Parts:
    """The parts of a run besides its trainer."""

    strategy: Strategy
    environment: Environment
    llm: LLM
    journal: Journal
    meter: Meter
    limits: Limits
    seed: int = 0
    rewards: Rewards | None = None
    """Score in place of the environment; None where it scores."""
    rows_per_call: int = 512
    resample_rounds: int = 0
    """Rounds in which groups without variance are replaced (`cotune.rollout.resampling`)."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """By field, what a resume must find as it was."""
    renew: Callable[[Mapping[str, str]], Mapping[str, str]] = dict
    """Brings what an older version saved as `identity` up to date."""
    frozen: bool = False
    """If set, a `JointTrainer` rolls out and makes no update."""
    changeable: Mapping[str, str] = field(default_factory=dict)
    """By field, what a resume may find changed; then it says so (see `cotune.config.resuming`)."""


def run_parts(
    config: RunConfig,
    environment: Environment,
    codec: HFCodec,
    rewards: Rewards | None,
    journal: Journal,
    ledger: Ledger,
) -> Parts:
    """The parts of a run file.

    Args:
        config: the run file.
        environment, codec, rewards: what was loaded for it.
        journal, ledger: where the run is written down.
    """
    return Parts(
        strategy=build_strategy(config, environment, codec),
        environment=environment,
        llm=build_llm(config, ledger),
        journal=journal,
        meter=ledger,
        limits=config.limits,
        seed=config.seed,
        rewards=rewards,
        rows_per_call=config.training.rows_per_call,
        resample_rounds=config.training.resample_rounds,
        identity=identity(config),
        renew=lambda saved: renewed(saved, config),
        frozen=config.training.frozen,
        changeable=changeable(config),
    )


class Resumable:
    """The part of a run that a resume compares and continues.

    Attributes:
        parts: the run besides its trainer.
    """

    parts: Parts

    @property
    def identity(self) -> dict[str, str]:
        """By field, what a resume must find as it was."""
        raise NotImplementedError

    def check_identity(self, state: State) -> None:
        """Raise ConfigError if the saved run is another than this one."""
        mine = self.identity
        for name, was in self.parts.renew(state["identity"]).items():
            if mine.get(name) != was:
                raise ConfigError(
                    f"{name}: is not what the saved run began with ({was[:120]}); restore it, or "
                    "start a new run in another folder"
                )

    def go_on_from(self, step: int, saved: Mapping[str, Any]) -> None:
        """Begin an attempt after a step: truncate later logs, record what changed.

        Args:
            step: the last one that counts.
            saved: what was saved at that step; its `changeable`, where it has one, is the run file's
                of then.
        """
        now = self.parts.changeable
        self.parts.meter.begin_attempt(step)
        self.parts.journal.cut_back(step)
        changed = changes(saved.get("changeable", now), now)
        self.parts.journal.event("resumed", step, from_step=step, changed=changed)


class Joint(Resumable):
    """The base of both engines' runs.

    Args:
        parts: strategy, environment, LLM and where things are written.
        order: which questions each step trains on.
        total_batches: T.
        coordinator: rolls out, consults the strategy.

    Attributes:
        batches: steps trained so far.
        ended: whether a budget has ended the training.
        rollouts_left: what is left of a budget of policy rollouts; set by what keeps one.
    """

    def __init__(
        self, parts: Parts, order: TaskOrder, total_batches: int, coordinator: Coordinator
    ) -> None:
        self.parts, self.order, self.total_batches = parts, order, total_batches
        self.coordinator = coordinator
        self.batches = 0
        self.ended = False
        self.rollouts_left: Callable[[], int | None] = lambda: None

    def progress(self, step: int) -> Progress:
        """Return where a step stands; what is left of a budget is known on rank 0."""
        return Progress(
            step=step,
            epoch=self.order.epoch(step),
            total_steps=self.total_batches,
            rollouts_left=self.rollouts_left(),
        )

    def state_dict(self) -> State:
        return {
            "batches": self.batches,
            "ended": self.ended,
            "identity": self.identity,
            "changeable": dict(self.parts.changeable),
            "coordinator": self.coordinator.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Raise ConfigError if the saved run is another than this one."""
        self.check_identity(state)
        self.batches, self.ended = int(state["batches"]), bool(state["ended"])
        self.coordinator.load_state_dict(state["coordinator"])

    @property
    def identity(self) -> dict[str, str]:
        return {"the training tasks": self.order.fingerprint, **self.parts.identity}

    def resume(self, state: State) -> None:
        """Resume from a saved state: truncate later logs, begin an attempt."""
        self.load_state_dict(state)
        if self.coordinator.comm.rank == 0:
            self.go_on_from(self.batches, state)

    def begin_closing(self) -> None:
        """Count what follows under the step after the last, so that a resume drops and repeats it."""
        self.coordinator.step = self.batches + 1
        if self.coordinator.comm.rank == 0:
            self.parts.meter.set_step(self.batches + 1)
