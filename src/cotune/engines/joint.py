"""A run that trains weights and prompt together, whatever its engine: its parts, where it stands, its state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cotune.changes import changes
from cotune.contracts import LLM, ConfigError, Environment, Rewards, State, Strategy
from cotune.coordinator import Coordinator, Journal, Meter
from cotune.records import Limits, Progress
from cotune.task_order import TaskOrder


@dataclass(frozen=True)
class Parts:
    """What a joint run is made of besides the trainer."""

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
    """How often groups without variance are replaced in a step at most (`cotune.resampling`)."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """By field, what a resume must find as it was."""
    renew: Callable[[Mapping[str, str]], Mapping[str, str]] = dict
    """Brings what an older version saved as `identity` up to date."""
    frozen: bool = False
    """Whether the policy stays as it is; then a `JointTrainer` rolls out and makes no update."""
    changeable: Mapping[str, str] = field(default_factory=dict)
    """By field, what a resume may find changed; then it says so (see `cotune.changes`)."""


class Joint:
    """What the engines' runs have in common.

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
        """Where a step stands; what is left of a budget is known on rank 0."""
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
            "identity": self._identity(),
            "changeable": dict(self.parts.changeable),
            "coordinator": self.coordinator.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Raises ConfigError where another run was saved than this one."""
        self.check_identity(state)
        self.batches, self.ended = int(state["batches"]), bool(state["ended"])
        self.coordinator.load_state_dict(state["coordinator"])

    def check_identity(self, state: State) -> None:
        """Raises ConfigError where another run was saved than this one."""
        mine = self._identity()
        for name, was in self.parts.renew(state["identity"]).items():
            if mine.get(name) != was:
                raise ConfigError(
                    f"{name}: is not what the saved run began with ({was[:120]}); restore it, or "
                    "start a new run in another folder"
                )

    def resume(self, state: State) -> None:
        """Goes on from a saved state: cuts back what was written after it, begins an attempt."""
        self.load_state_dict(state)
        if self.coordinator.comm.rank == 0:
            self.parts.meter.begin_attempt(self.batches)
            self.parts.journal.cut_back(self.batches)
            now = self.parts.changeable
            changed = changes(state.get("changeable", now), now)
            self.parts.journal.event(
                "resumed", self.batches, from_step=self.batches, changed=changed
            )

    def begin_closing(self) -> None:
        """What follows counts under the step after the last: a resume drops it and does it anew."""
        self.coordinator.step = self.batches + 1
        if self.coordinator.comm.rank == 0:
            self.parts.meter.set_step(self.batches + 1)

    def _identity(self) -> dict[str, str]:
        return {"the training tasks": self.order.fingerprint, **self.parts.identity}
