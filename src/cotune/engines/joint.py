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


class TrainingRun:
    """Base class of all runs: recorded, evaluated, compared with a saved state, and resumed from it.

    Attributes:
        parts: the parts of the run other than its trainer.
        coordinator: rolls out and consults the strategy.
        batches: the number of steps trained so far.
        chosen: the checkpoint that this run resumes from, if the engine chose it.
        attempt: which of the run's attempts this is, once training has begun.
    """

    parts: Parts
    coordinator: Coordinator
    batches: int = 0
    chosen: Chosen | None = None
    attempt: int | None = None

    @property
    def ended_early(self) -> str:
        """Return why training ended before its last step; "" if it did not."""
        return ""

    @property
    def identity(self) -> dict[str, str]:
        """Return, by field, the values that must be unchanged on a resume."""
        raise NotImplementedError

    def record_in(self, record: Record, llm: LLM) -> None:
        """Record the run from now on, and let it ask its LLM."""
        self.parts = replace(self.parts, record=record, llm=llm)
        self.coordinator.record = record
        self.coordinator.llm = llm

    def check_identity(self, state: State) -> None:
        """Raise ConfigError if the state was saved by a different run."""
        mine = self.identity
        for name, was in state["identity"].items():
            if mine.get(name) != was:
                raise ConfigError(
                    f"{name}: is not what the saved run began with ({was[:120]}); restore it, or "
                    "start a new run in another folder"
                )

    def state_dict(self) -> State:
        return {
            "batches": self.batches,
            "attempt": self.attempt,
            "identity": self.identity,
            "changeable": dict(self.parts.changeable),
        }

    def load_state_dict(self, state: State) -> None:
        """Raise ConfigError if the state was saved by a different run."""
        self.check_identity(state)
        self.batches = int(state["batches"])

    def resume(self, state: State) -> None:
        """Resume from a saved state: truncate later logs, start a new attempt.

        Raises:
            ConfigError: the state was saved by a different run.
        """
        self.load_state_dict(state)
        if self.coordinator.comm.rank == 0:
            self.go_on_from(self.batches, state)

    def go_on_from(self, step: int, saved: Mapping[str, Any]) -> None:
        """Start an attempt after a step: truncate later logs, record changed fields.

        Args:
            step: the last step to keep.
            saved: the state saved at that step; its `changeable`, if present, holds the values of
                the run file at that time.
        """
        now, chosen = self.parts.changeable, self.chosen or Chosen()
        record = self.parts.record
        self.attempt = record.begin_attempt(step, saved.get("attempt"))
        changed = changes(saved.get("changeable", now), now)
        record.event("resumed", step, from_step=step, changed=changed)
        for text in chosen.notices:
            record.event("notice", step, text=text)

    def record_under(self, step: int) -> None:
        """Record what follows under a step."""
        self.coordinator.current_step = step
        if self.coordinator.comm.rank == 0:
            self.parts.record.set_step(step)

    def begin_closing(self) -> None:
        """Record what follows under the step after the last; a resume drops and repeats it."""
        self.record_under(self.batches + 1)


class Joint(TrainingRun):
    """Base class of both engines' runs.

    Args:
        parts: strategy, environment, LLM and outputs.
        order: the questions for each step.
        total_batches: T, the total number of steps.
        coordinator: rolls out and consults the strategy.

    Attributes:
        ended: whether a budget has ended training.
        rollouts_left: the remaining budget of policy rollouts; set by the budget's owner.
    """

    def __init__(
        self, parts: Parts, order: TaskOrder, total_batches: int, coordinator: Coordinator
    ) -> None:
        self.parts, self.order, self.total_batches = parts, order, total_batches
        self.coordinator = coordinator
        self.ended = False
        self.rollouts_left: Callable[[], int | None] = lambda: None

    def progress(self, step: int) -> Progress:
        """Return the progress at a step; only rank 0 knows the remaining budget."""
        return Progress(
            step=step,
            epoch=self.order.epoch(step),
            total_steps=self.total_batches,
            rollouts_left=self.rollouts_left(),
        )

    def state_dict(self) -> State:
        return {
            **super().state_dict(),
            "ended": self.ended,
            "coordinator": self.coordinator.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.ended = bool(state["ended"])
        self.coordinator.load_state_dict(state["coordinator"])

    @property
    def ended_early(self) -> str:
        if not self.ended or self.batches >= self.total_batches:
            return ""
        place = f"step {self.batches} of {self.total_batches}"
        return f"training ended after {place}: training.rollout_budget is spent"

    @property
    def identity(self) -> dict[str, str]:
        return {**self.order.identity, **self.parts.identity}
