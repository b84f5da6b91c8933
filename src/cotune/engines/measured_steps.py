"""Timings of some steps of a run, and a projection of the whole run from them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cotune.config.cost import Plan
from cotune.run.ledger import Totals


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
    """A measurement.

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


@dataclass(frozen=True, slots=True)
class Share:
    """The projection of one purpose of rollouts; counts are upper bounds, as in the plan."""

    rollouts: int
    tokens: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Projection:
    """The whole run at the measured rate.

    Attributes:
        shares: by purpose; "train" holds the updates, too.
        llm: seconds of all LLM calls, one after the other; None where none was measured.
    """

    shares: Mapping[str, Share]
    llm: float | None

    @property
    def seconds(self) -> float:
        return math.fsum(share.seconds for share in self.shares.values()) + (self.llm or 0.0)


def project(measured: Measured, planned: Plan, rollouts_per_step: int) -> Projection:
    """Project what `planned` would take at the measured rate.

    A purpose that no measured step had is taken to go as training does. So is evaluation, which is
    greedy.
    """
    totals, steady = measured.totals, measured.steady
    per_step = math.fsum(step.training for step in steady) / len(steady)
    rollout = math.fsum(step.rollouts for step in steady) / len(steady) / rollouts_per_step
    shares: dict[str, Share] = {}
    for purpose, count in planned.rollouts.items():
        known = purpose if totals.rollouts.get(purpose) else "train"
        tokens = totals.generated_tokens[known] / max(1, totals.rollouts[known])
        if purpose == "train":
            seconds = count / rollouts_per_step * per_step
        elif known == purpose:
            seconds = count * totals.seconds[purpose] / totals.rollouts[purpose]
        else:
            seconds = count * rollout
        shares[purpose] = Share(count, count * tokens, seconds)
    llm = None
    if not planned.calls:
        llm = 0.0
    elif totals.llm_calls:
        llm = planned.calls * totals.llm_seconds / totals.llm_calls
    return Projection(shares, llm)
