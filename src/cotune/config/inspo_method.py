"""INSPO as a Python object."""

from dataclasses import dataclass

from cotune.config.joint_method import JointMethod
from cotune.methods.inspo.inspo import InspoOptions


@dataclass(frozen=True, kw_only=True)
class INSPO(JointMethod, InspoOptions):
    """Co-evolve instruction and policy (INSPO, arXiv 2512.01945)."""

    options_class = InspoOptions
