"""The methods that change a prompt, as Python objects."""

from dataclasses import dataclass

from cotune.config.joint_method import JointMethod
from cotune.methods.fst import FstOptions, GepaOptions
from cotune.methods.inspo.inspo import InspoOptions
from cotune.methods.p2o.p2o import P2OOptions


@dataclass(frozen=True, kw_only=True)
class INSPO(JointMethod, InspoOptions):
    """Co-evolve instruction and policy (INSPO, arXiv 2512.01945)."""

    options_class = InspoOptions


@dataclass(frozen=True, kw_only=True)
class GEPA(JointMethod, GepaOptions):
    """Run GEPA on the instruction before the first step (arXiv 2507.19457), then train with GRPO.

    The search spends its whole `budget` of rollouts at step 1, with the policy as it is then.
    """

    options_class = GepaOptions


@dataclass(frozen=True, kw_only=True)
class FST(JointMethod, FstOptions):
    """Evolve a set of prompts between steps and spread each group over them (FST, arXiv 2605.12484).

    Its authors' loss is CISPO: `GRPOConfig(loss_type="cispo", epsilon_high=5.0)`.
    """

    options_class = FstOptions


@dataclass(frozen=True, kw_only=True)
class P2O(JointMethod, P2OOptions):
    """Sample hard questions under hints, and distil the hints (P²O, arXiv 2603.21877).

    The instruction does not change.
    """

    options_class = P2OOptions
