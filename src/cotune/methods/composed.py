"""INSPO and P²O composed: a population of instructions, with hints on hard questions."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from cotune.methods.inspo import inspo
from cotune.methods.inspo.inspo import Inspo, InspoOptions
from cotune.methods.method import Context, Cost, Method, RunShape, arxiv
from cotune.methods.p2o import p2o
from cotune.methods.p2o.p2o import P2O, P2OOptions
from cotune.types import Assignment, Progress, Task


@dataclass(frozen=True, kw_only=True)
class ComposedOptions:
    """The options of both methods.

    Attributes:
        inspo: the population of instructions.
        p2o: hard questions, hints and distillation.
        distil_instruction: share of the groups whose gradient is taken on the initial instruction
            instead of the one that they were sampled under, so that the gain from the
            instruction moves into the weights.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    kind: Literal["inspo+p2o"] = "inspo+p2o"
    inspo: InspoOptions = field(default_factory=InspoOptions)
    p2o: P2OOptions = field(default_factory=P2OOptions)
    distil_instruction: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.distil_instruction <= 1:
            raise ValueError(
                f"distil_instruction is {self.distil_instruction}; expected between 0 and 1"
            )
        if self.distil_instruction and self.p2o.distillation.ratio == "off":
            raise ValueError(
                f"distil_instruction is {self.distil_instruction}, but p2o.distillation.ratio is "
                "'off', no distillation; expected another ratio"
            )


class InspoP2O(P2O):
    """Give every question an instruction by INSPO and hard questions a hint by P²O.

    The gradient is on instruction and question without the hint. Hinted rollouts credit no
    instruction (`Inspo.observe`). Hints are evolved under the best instruction.
    """

    def __init__(self, options: ComposedOptions, context: Context) -> None:
        super().__init__(options.p2o, context, Inspo(options.inspo, context))
        self.composition = options
        self._initial = context.instruction

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        """Return P²O's assignments over INSPO's; some groups train on the initial instruction."""
        distilled = {group for group in range(len(tasks)) if self._distils(progress.step, group)}
        return [
            replace(a, trained=replace(a.trained, instruction=self._initial))
            if a.group in distilled
            else a
            for a in super().assign(tasks, group_size, progress)
        ]

    def _distils(self, step: int, group: int) -> bool:
        draw = random.Random(f"composed/{self.seed}/distil/{step}/{group}").random()
        return draw < self.composition.distil_instruction


def _check(options: ComposedOptions, shape: RunShape) -> None:
    p2o.check(options.p2o, shape)


def _cost(options: ComposedOptions, shape: RunShape) -> Cost:
    a, b = inspo.cost(options.inspo, shape), p2o.cost(options.p2o, shape)
    return Cost(a.phases + b.phases, {**a.rollouts, **b.rollouts}, a.proposals + b.proposals)


def _scaled(options: ComposedOptions) -> ComposedOptions:
    return replace(options, inspo=inspo.scaled(options.inspo), p2o=p2o.scaled(options.p2o))


METHOD = Method(
    options=ComposedOptions,
    build=InspoP2O,
    label="INSPO with P²O",
    about="both composed",
    card=(
        f"INSPO ({arxiv('2512.01945')}) and P²O ({arxiv('2603.21877')}) composed: the instruction "
        "evolves, and hard questions are rolled out under evolved hints, on GRPO"
    ),
    tags=("grpo", "inspo", "p2o"),
    evolves=("instruction", "hints"),
    offline_worlds=("geo",),
    check=_check,
    cost=_cost,
    scaled=_scaled,
)
