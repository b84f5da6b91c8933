"""FST and GEPA as Python objects."""

from dataclasses import dataclass

from cotune.config.joint_method import JointMethod
from cotune.methods.fst import FstOptions, GepaOptions


@dataclass(frozen=True, kw_only=True)
class GEPA(JointMethod, GepaOptions):
    """Run GEPA on the instruction before the first step (arXiv 2507.19457), then train with GRPO.

    The search spends at most `budget` rollouts, all at step 1, with the policy as it is then.
    """

    options_class = GepaOptions


@dataclass(frozen=True, kw_only=True)
class FST(JointMethod, FstOptions):
    """Evolve a set of prompts between steps and spread each group over them (FST, arXiv 2605.12484).

    Its authors' loss is CISPO: `GRPOConfig(loss_type="cispo", epsilon_high=5.0)`.
    """

    options_class = FstOptions
