"""INSPO and P²O composed: a population of instructions, with hints on hard questions."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from cotune.methods.group_plan import Groups, Target
from cotune.methods.inspo import inspo
from cotune.methods.inspo.credit import Credit
from cotune.methods.inspo.inspo import Inspo, InspoOptions
from cotune.methods.method import Context, Cost, Method, RunShape, arxiv
from cotune.methods.p2o import p2o
from cotune.methods.p2o.p2o import P2O, P2OOptions
from cotune.types import Distillation


@dataclass(frozen=True, kw_only=True)
class ComposedInspoOptions(InspoOptions):
    """INSPO's options with other defaults: mixed groups, all trained on the initial instruction."""

    groups: Groups = "mixed"
    target: Target = "initial"
    credit: Credit = "uplift"


@dataclass(frozen=True, kw_only=True)
class ComposedP2OOptions(P2OOptions):
    """P²O's options with other defaults: the signed mask; a question is hard if the best instruction fails on it."""

    screen: bool = True
    distillation: Distillation = field(default_factory=lambda: Distillation(ratio="masked_signed"))


@dataclass(frozen=True, kw_only=True)
class ComposedOptions:
    """The options of both methods.

    Attributes:
        inspo: the population of instructions, and what groups are sampled under and trained on.
        p2o: hard questions, hints and distillation; its `distillation` applies to all rollouts.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    kind: Literal["inspo+p2o"] = "inspo+p2o"
    inspo: ComposedInspoOptions = field(default_factory=ComposedInspoOptions)
    p2o: ComposedP2OOptions = field(default_factory=ComposedP2OOptions)

    def __post_init__(self) -> None:
        if self.inspo.distil_steps:
            raise ValueError(
                f"inspo.distil_steps is {self.inspo.distil_steps}; expected 0, because a composed run has no "
                "last stage"
            )
        if self.inspo.distillation not in (None, Distillation()):
            raise ValueError("inspo.distillation: is not read here; set p2o.distillation")


class InspoP2O(P2O):
    """Give every question an instruction by INSPO and hard questions a hint by P²O.

    Hinted rollouts credit no instruction (`Inspo.observe`). Hints are evolved under the best
    instruction. By default groups are mixed: the rollouts under the drawn instruction, with a hint if
    the question is hard, are compared with those under the initial instruction alone, and the gradient
    of all is taken on the latter.
    """

    def __init__(self, options: ComposedOptions, context: Context) -> None:
        base = Inspo(options.inspo, context)
        super().__init__(options.p2o, context, base, options.inspo.groups)


def _check(options: ComposedOptions, shape: RunShape) -> None:
    p2o.check(options.p2o, shape, options.inspo.groups)


def _cost(options: ComposedOptions, shape: RunShape) -> Cost:
    a, b = inspo.cost(options.inspo, shape), p2o.cost(options.p2o, shape, options.inspo.groups)
    rollouts, proposals = {**a.rollouts, **b.rollouts}, a.proposals + b.proposals
    return Cost(a.phases + b.phases, rollouts, proposals, a.validations, a.rivals)


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
    check=_check,
    cost=_cost,
    distillation=lambda options: options.p2o.distillation,
)
