"""INSPO and P²O composed: a population of instructions, with hints on hard questions."""

from dataclasses import dataclass, field
from typing import Literal

from cotune.methods.inspo import inspo
from cotune.methods.inspo.inspo import Inspo, InspoOptions
from cotune.methods.method import Context, Cost, Method, RunShape
from cotune.methods.p2o import p2o
from cotune.methods.p2o.p2o import P2O, P2OOptions
from cotune.types import Distillation, Section


@dataclass(frozen=True, kw_only=True)
class ComposedOptions(Section):
    """The options of both methods.

    Attributes:
        inspo: the population of instructions, and what groups are sampled under and trained on. With `target`
            "initial" its `distillation` applies to all rollouts, and `p2o.distillation` is not read.
        p2o: hard questions, hints and distillation.
    """

    kind: Literal["inspo+p2o"] = "inspo+p2o"
    inspo: InspoOptions = field(default_factory=InspoOptions)
    p2o: P2OOptions = field(default_factory=P2OOptions)

    def __post_init__(self) -> None:
        if self.inspo.distil_steps:
            raise ValueError(
                f"inspo.distil_steps is {self.inspo.distil_steps}; expected 0, because a composed run has no "
                "last stage"
            )
        if self.inspo.verification == "trial":
            raise ValueError(
                "inspo.verification is 'trial', which hinted rollouts of hard questions cannot decide; expected "
                "'full', 'racing' or 'none'"
            )
        if self.inspo.target == "initial" and self.p2o.distillation != Distillation():
            raise ValueError(
                "p2o.distillation is set, but with inspo.target 'initial' inspo.distillation weights all "
                "rollouts; set that, or inspo.target 'sampled'"
            )

    @property
    def distillation(self) -> Distillation:
        """Return how rollouts that are trained on another prompt are weighted."""
        if self.inspo.target == "sampled":
            return self.p2o.distillation
        return self.inspo.weighting


class InspoP2O(P2O):
    """Give every question an instruction by INSPO and hard questions a hint by P²O.

    Hinted rollouts credit no instruction (`Inspo.observe`). Hints are evolved under the best
    instruction. In mixed groups the rollouts under the drawn instruction, with a hint if the question is hard,
    are compared with those under the initial instruction alone.
    """

    def __init__(self, options: ComposedOptions, context: Context) -> None:
        base = Inspo(options.inspo, context)
        super().__init__(options.p2o, context, base, options.inspo.groups)
        self._distillation = options.distillation

    @property
    def distillation(self) -> Distillation:
        return self._distillation


def _cost(options: ComposedOptions, shape: RunShape) -> Cost:
    a = inspo.cost(options.inspo, shape)
    b = p2o.cost(options.p2o, shape)
    rollouts = {**a.rollouts, **b.rollouts}
    proposals = a.proposals + b.proposals
    return Cost(a.phases + b.phases, rollouts, proposals, a.validations, a.rivals)


METHOD = Method(
    options=ComposedOptions,
    build=InspoP2O,
    label="INSPO with P²O",
    about="both composed",
    evolves=("instruction", "hints"),
    check=lambda options, shape: p2o.check(options.p2o, shape, options.inspo.groups),
    cost=_cost,
    distillation=lambda options: options.distillation,
)
