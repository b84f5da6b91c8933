"""The registry entry of a method, the inputs from which strategies are built, and when scores count."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, variance
from typing import Any, Literal, Protocol

from cotune.protocols import LLM, Recorder, Rollout, Strategy
from cotune.types import Distillation, Progress, Purpose, Task

CISPO_CAP = 5.0
"""Upper bound of the importance ratio in CISPO's loss; ScaleRL's value (arXiv 2510.13786)."""


class MethodOptions(Protocol):
    """The options of a method: a frozen dataclass with `kind: Literal["…"] = "…"`."""

    @property
    def kind(self) -> str: ...


SOLVED_AT = 0.5
"""A rollout whose reward reaches this is a success; the papers' rewards are 0 and 1."""


def too_close_to_call(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return whether two samples' means differ by no more than the standard error of their difference.

    That is sqrt(var(a)/len(a) + var(b)/len(b)) with sample variances. A sample of fewer than two
    values has no variance and counts as too close.
    """
    if min(len(a), len(b)) < 2:
        return True
    error = math.sqrt(variance(a) / len(a) + variance(b) / len(b))
    return abs(fmean(a) - fmean(b)) <= error


def check_least(options: object, least: int, *names: str) -> None:
    """Raise ValueError if one of these fields of some options is below `least`."""
    for name in names:
        if getattr(options, name) < least:
            raise ValueError(f"{name} is {getattr(options, name)}; expected {least} or more")


@dataclass(frozen=True, kw_only=True)
class Context:
    """The inputs of a strategy, in addition to its options.

    Attributes:
        instruction: the initial instruction, "i0".
        tasks: the training questions.
        seed: of all draws, each keyed by its purpose.
        required: texts that every instruction must contain.
        description: the environment, described to the LLM that proposes.
        count_tokens: returns a text's length in the policy's tokens; None if nothing is counted.
        max_tokens: the length limit of an evolved text, in these tokens.
        control_tokens: the policy's special tokens as text; no evolved text may contain one.
    """

    instruction: str
    tasks: Sequence[Task] = ()
    seed: int = 0
    required: Sequence[str] = ()
    description: str = ""
    count_tokens: Callable[[str], int] | None = None
    max_tokens: int | None = None
    control_tokens: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Evolution:
    """What an evolution before a step works with: `Strategy.evolve_if_due`'s arguments."""

    progress: Progress
    rollout: Rollout
    llm: LLM
    record: Recorder


@dataclass(frozen=True, kw_only=True)
class RunShape:
    """The parts of `training` that a method's checks and costs depend on; `questions` is 0 if not counted yet."""

    group_size: int
    steps: int = 1
    questions_per_step: int = 1
    rollout_budget: int | None = None
    frozen: bool = False
    questions: int = 0


@dataclass(frozen=True)
class Cost:
    """Upper bounds on a method's spending on evolution.

    Attributes:
        phases: number of evolution phases.
        rollouts: number of rollouts by purpose, beside the training batches.
        calls: number of calls of the optimizer LLM.
        shown_rollouts: number of rollouts in one of its prompts.
        validations: how often a policy is scored on validation; 2 if also under the initial instruction.
        rivals: how many instructions validation may have to compare with the best one at the end.
    """

    phases: int = 0
    rollouts: Mapping[Purpose, int] = field(default_factory=dict[Purpose, int])
    calls: int = 0
    shown_rollouts: int = 0
    validations: int = 1
    rivals: int = 0


@dataclass(frozen=True, kw_only=True)
class Method:
    """Everything that the run file, the plan, the console, the model card and the suites know of a method.

    Attributes:
        options: the class of its options, a section `strategy` of the run file.
        build: makes the strategy.
        label: its name in tables and reports.
        about: what it does, in a line.
        evolves: the texts that it changes, which may fill half of a prompt; None if it changes none.
        needs_llm: whether it asks an optimizer LLM.
        uses_batches: whether it learns from training batches, so that they are rolled out even if the policy is frozen.
        loss: the policy loss, unless `training.engine_args` names another: GRPO's, or CISPO's (arXiv 2506.13585), which
            clips the importance ratio and drops no token's gradient.
        check: raises ValueError for options that do not fit the run; the message starts with the field.
        cost: bounds what evolution spends.
        schedule: says when phases of evolution come, for a run that has none; "" if the options mean it to have none.
        distillation: returns how rollouts that are trained on another prompt are weighted.
    """

    options: type[Any]
    build: Callable[[Any, Context], Strategy]
    label: str
    about: str
    evolves: Literal["instruction", "hints"] | None = None
    needs_llm: bool = True
    uses_batches: bool = True
    loss: Literal["grpo", "cispo"] = "grpo"
    check: Callable[[Any, RunShape], None] = lambda options, shape: None
    cost: Callable[[Any, RunShape], Cost] = lambda options, shape: Cost()
    schedule: Callable[[Any], str] = lambda options: ""
    distillation: Callable[[Any], Distillation] = lambda options: Distillation()

    @property
    def kind(self) -> str:
        """Return `strategy.kind` as in the run file."""
        return str(getattr(self.options, "kind"))  # noqa: B009  the default of its field
