"""Joint training of weights and prompt on any engine: the run's parts, progress and saved state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cotune.config.joint_method import JointMethod
from cotune.config.resuming import changes
from cotune.config.strategy import build_strategy
from cotune.engines.run_start import RunSettings
from cotune.engines.undamaged import Chosen
from cotune.errors import ConfigError
from cotune.llm.client import NoLLM
from cotune.policy.codec import HFCodec
from cotune.protocols import LLM, Environment, Rewards, State, Strategy
from cotune.rollout.coordinator import Coordinator
from cotune.rollout.task_order import TaskOrder
from cotune.run.record import Record
from cotune.types import Limits, Progress


@dataclass(frozen=True)
class Parts:
    """The parts of a run other than its trainer."""

    strategy: Strategy
    environment: Environment
    limits: Limits
    llm: LLM = field(default_factory=NoLLM)
    record: Record = field(default_factory=Record)
    seed: int = 0
    rewards: Rewards | None = None
    """Reward functions that replace the environment's scoring; None if the environment scores."""
    rows_per_call: int = 512
    identity: Mapping[str, str] = field(default_factory=dict)
    """By field, the values that must be unchanged on a resume."""
    frozen: bool = False
    """If set, a `JointTrainer` only rolls out and makes no update."""
    changeable: Mapping[str, str] = field(default_factory=dict)
    """By field, values that a resume may change, and then reports (`cotune.config.resuming`)."""


def run_parts(
    settings: RunSettings,
    method: JointMethod,
    environment: Environment,
    codec: HFCodec,
    limits: Limits,
    rewards: Rewards | None = None,
    **recorded: Any,
) -> Parts:
    """Return the parts of a run.

    Args:
        settings: what the run has beside its trainer's arguments.
        method: builds the strategy.
        environment, codec, limits, rewards: what rollouts are made with.
        recorded: `llm` and `record` of `Parts`; by default the run is silent until it is opened.
    """
    return Parts(
        strategy=build_strategy(
            method.options,
            environment,
            instruction=initial_instruction(method, environment),
            seed=settings.seed,
            limits=limits,
            tokens=codec,
        ),
        environment=environment,
        limits=limits,
        seed=settings.seed,
        rewards=rewards,
        rows_per_call=settings.rows_per_call,
        identity=settings.identity,
        frozen=settings.frozen,
        changeable=settings.changeable,
        **recorded,
    )


def initial_instruction(method: JointMethod, environment: Environment) -> str:
    """Return the method's initial instruction, or else the environment's."""
    return environment.initial_instruction if method.instruction is None else method.instruction


class Joint:
    """Base class of both engines' runs: recorded, evaluated, compared with a saved state, resumed from it.

    Args:
        parts: strategy, environment, LLM and outputs.
        order: the questions for each step.
        total_batches: T, the total number of steps.
        coordinator: rolls out and consults the strategy.

    Attributes:
        batches: the number of steps trained so far.
        ended: whether a budget has ended training.
        rollouts_left: the remaining budget of policy rollouts; set by the budget's owner.
        chosen: the checkpoint that this run resumes from.
        attempt: which of the run's attempts this is, once training has begun.
    """

    def __init__(
        self, parts: Parts, order: TaskOrder, total_batches: int, coordinator: Coordinator
    ) -> None:
        self.parts, self.order, self.total_batches = parts, order, total_batches
        self.coordinator = coordinator
        self.batches = 0
        self.ended = False
        self.rollouts_left: Callable[[], int | None] = lambda: None
        self.chosen: Chosen | None = None
        self.attempt: int | None = None

    def progress(self, step: int) -> Progress:
        """Return the progress at a step; only rank 0 knows the remaining budget."""
        return Progress(
            step=step,
            epoch=self.order.epoch(step),
            total_steps=self.total_batches,
            rollouts_left=self.rollouts_left(),
        )

    @property
    def ended_early(self) -> str:
        """Return why training ended before its last step; "" if it did not."""
        if not self.ended or self.batches >= self.total_batches:
            return ""
        place = f"step {self.batches} of {self.total_batches}"
        return f"training ended after {place}: training.rollout_budget is spent"

    def record_in(self, record: Record, llm: LLM) -> None:
        """Record the run from now on, and let it ask its LLM."""
        self.parts = replace(self.parts, record=record, llm=llm)
        self.coordinator.record = record
        self.coordinator.llm = llm

    def begin_closing(self) -> None:
        """Record what follows under the step after the last; a resume drops and repeats it."""
        self.coordinator.current_step = self.batches + 1
        if self.coordinator.comm.rank == 0:
            self.parts.record.set_step(self.batches + 1)

    # ---- saved state

    @property
    def identity(self) -> dict[str, str]:
        """Return, by field, the values that must be unchanged on a resume."""
        return {**self.order.identity, **self.parts.identity}

    def check_identity(self, state: State) -> None:
        """Raise ConfigError if the state was saved by a different run."""
        identity = self.identity
        for name, saved_value in state["identity"].items():
            if identity.get(name) != saved_value:
                raise ConfigError(
                    f"{name}: is not what the saved run began with ({saved_value[:120]}); restore it, or "
                    "start a new run in another folder"
                )

    def state_dict(self) -> State:
        return {
            "batches": self.batches,
            "attempt": self.attempt,
            "identity": self.identity,
            "changeable": dict(self.parts.changeable),
            "ended": self.ended,
            "coordinator": self.coordinator.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Raise ConfigError if the state was saved by a different run."""
        self.check_identity(state)
        self.batches = int(state["batches"])
        self.ended = bool(state["ended"])
        self.coordinator.load_state_dict(state["coordinator"])

    def resume(self, state: State) -> None:
        """Resume from a saved state: start a new attempt, truncate later logs, record changed fields.

        Raises:
            ConfigError: the state was saved by a different run.
        """
        self.load_state_dict(state)
        if self.coordinator.comm.rank != 0:
            return
        record, step, now = self.parts.record, self.batches, self.parts.changeable
        self.attempt = record.begin_attempt(step, state.get("attempt"))
        changed = changes(state.get("changeable", now), now)
        record.event("resumed", step, from_step=step, changed=changed)
        for text in self.chosen.notices if self.chosen is not None else ():
            record.event("notice", step, text=text)
