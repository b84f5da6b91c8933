"""Joint training of weights and prompt on any engine: what a run has beside its trainer, its progress and saved state."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from rich.console import Console

from cotune.config.build import describe_llm
from cotune.config.resuming import identity
from cotune.config.run_file import EvaluationConfig, RunConfig, dump_config
from cotune.errors import ConfigError
from cotune.llm.client import NoLLM
from cotune.policy.codec import HFCodec
from cotune.protocols import LLM, Comm, Environment, Rewards, State, Strategy
from cotune.rollout.coordinator import Coordinator, RollOutHere, RolloutSettings, SingleProcess
from cotune.rollout.task_order import TaskOrder
from cotune.run.costs import CostRow, policy_rollouts
from cotune.run.record import Record
from cotune.types import Limits, Progress


class TorchComm:
    """`protocols.Comm` on the default process group."""

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def size(self) -> int:
        return dist.get_world_size()

    def broadcast(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values


def world() -> Comm:
    """Return the group of processes started together; only this one without others."""
    # A vLLM in the only training process initializes a group of its own.
    several = dist.is_initialized() and dist.get_world_size() > 1
    return TorchComm() if several else SingleProcess()


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run has beside its trainer's arguments; a run file's fields, or their counterparts of a script.

    Attributes:
        folder: the run folder.
        record: plain data for its run.yaml.
        identity: by field, the values that must be unchanged on a resume.
        rollout_budget: policy rollouts after which training ends; None is no limit.
        frozen: only roll out, make no update.
        has_batches: whether training batches are rolled out; if not, the run only evolves.
        rows_per_call: rollouts that are sampled together, per process.
        rollouts_every: steps between files of training rollouts; 0 keeps those of evaluations only.
        console: shows progress; None, in a script, logs it to the logger "cotune".
        llm_checks: calls that checked the LLM before the run began, to be counted with its costs; None if
            it was not asked yet.
        working_folder: what relative paths start from; a tool may change the current folder.
    """

    folder: Path
    record: Mapping[str, Any]
    seed: int = 0
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    identity: Mapping[str, str] = field(default_factory=dict[str, str])
    rollout_budget: int | None = None
    frozen: bool = False
    has_batches: bool = True
    rows_per_call: int = 512
    llm_name: str = "none"
    rollouts_every: int = 10
    console: Console | None = None
    llm_checks: tuple[CostRow, ...] | None = None
    working_folder: Path = field(default_factory=Path.cwd)


def settings_of(
    config: RunConfig, console: Console | None, llm_checks: tuple[CostRow, ...] = ()
) -> RunSettings:
    """Return the settings of a run file, or of what a script has in its place."""
    return RunSettings(
        folder=config.output.absolute(),
        record=dump_config(config),
        seed=config.seed,
        evaluation=config.evaluation,
        identity=identity(config),
        rollout_budget=config.training.rollout_budget,
        frozen=config.training.frozen,
        has_batches=config.has_batches,
        rows_per_call=config.training.rows_per_call,
        llm_name=describe_llm(config.proposer),
        rollouts_every=config.logging.trajectories_every,
        console=console,
        llm_checks=llm_checks,
    )


@dataclass(frozen=True)
class Parts:
    """The parts of a run other than its trainer.

    Attributes:
        rewards: reward functions that replace the environment's scoring; None if the environment scores.
        settings: what a run file says besides.
        context_tokens: the policy's context length, if episodes must end there; None is unlimited.
    """

    strategy: Strategy
    environment: Environment
    codec: HFCodec
    limits: Limits
    settings: RunSettings
    rewards: Rewards | None = None
    llm: LLM = field(default_factory=NoLLM)
    record: Record = field(default_factory=Record)
    context_tokens: int | None = None


class Joint:
    """Base class of every engine's run: recorded, evaluated, compared with a saved state, resumed from it.

    Args:
        total_batches: T, the total number of steps.
        temperature: of the rollouts that are trained on.
        roll_out: rolls out in place of a sampler; without it an engine sets `coordinator.sampler`.

    Attributes:
        batches: the number of steps trained so far.
        ended: whether a budget has ended training.
        changed: the fields of run.yaml that a resume has changed; see `cotune.config.resuming.changes`.
        attempt: which of the run's attempts this is, once training has begun.
    """

    def __init__(
        self,
        parts: Parts,
        order: TaskOrder,
        total_batches: int,
        group_size: int,
        temperature: float,
        roll_out: RollOutHere | None = None,
    ) -> None:
        self.parts = parts
        self.order = order
        self.total_batches = total_batches
        self.coordinator = Coordinator(
            strategy=parts.strategy,
            environment=parts.environment,
            codec=parts.codec,
            sampler=cast(Any, None),
            llm=parts.llm,
            record=parts.record,
            settings=RolloutSettings(
                limits=parts.limits,
                temperature=temperature,
                seed=parts.settings.seed,
                rows_per_call=parts.settings.rows_per_call,
                context_tokens=parts.context_tokens,
            ),
            comm=world(),
            rewards=parts.rewards,
            roll_out=roll_out,
        )
        self.group_size = group_size
        self.batches = 0
        self.ended = False
        self.changed: Mapping[str, Any] = {}
        self.attempt: int | None = None

    def progress(self, step: int) -> Progress:
        """Return the progress at a step; only rank 0 knows the remaining budget."""
        return Progress(
            step=step,
            epoch=self.order.epoch(step),
            total_steps=self.total_batches,
            rollouts_left=self.rollouts_left(),
        )

    def rollouts_left(self) -> int | None:
        """Return the remaining budget of rollouts, which only rank 0 knows; None without a budget."""
        budget = self.parts.settings.rollout_budget
        if budget is None:
            return None
        return budget - policy_rollouts(self.parts.record.totals().rollouts)

    def budget_is_spent(self) -> bool:
        """Return whether another batch would exceed the budget; call on all ranks together."""
        if self.parts.settings.rollout_budget is None:
            return False
        left: int = self.coordinator.comm.broadcast(self.rollouts_left())
        return left < self.order.questions * self.group_size

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
            self.parts.record.step = self.batches + 1

    # ---- saved state

    @property
    def identity(self) -> dict[str, str]:
        """Return, by field, the values that must be unchanged on a resume."""
        return {**self.order.identity, **self.parts.settings.identity}

    def state_dict(self) -> State:
        return {
            "batches": self.batches,
            # For readers of the file only: a resume begins a new attempt.
            "attempt": self.attempt,
            "identity": self.identity,
            "ended": self.ended,
            "coordinator": self.coordinator.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state; raise ConfigError if a different run saved it."""
        check_identity(state, self.identity)
        self.batches = int(state["batches"])
        self.ended = bool(state["ended"])
        self.coordinator.load_state_dict(state["coordinator"])

    def resume(self, state: State) -> None:
        """Resume from a saved state: start a new attempt, truncate later logs, record changed fields."""
        self.load_state_dict(state)
        if self.coordinator.comm.rank != 0:
            return
        record = self.parts.record
        step = self.batches
        self.attempt = record.begin_attempt(step)
        record.event("resumed", step, from_step=step, changed=self.changed)


def check_identity(state: State, identity: Mapping[str, str]) -> None:
    """Raise ConfigError if a state was saved by a run of another identity; name the field."""
    for name, saved_value in state["identity"].items():
        if identity.get(name) != saved_value:
            raise ConfigError(
                f"{name}: differs from what the saved run began with ({saved_value[:120]}); restore it, or "
                "start a new run in another folder"
            )
