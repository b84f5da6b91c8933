"""P²O as a Python object."""

from dataclasses import dataclass

from cotune.config.joint_method import JointMethod
from cotune.methods.p2o.p2o import P2OOptions


@dataclass(frozen=True, kw_only=True)
class P2O(JointMethod, P2OOptions):
    """Sample hard questions under hints, and distil the hints (P²O, arXiv 2603.21877).

    The instruction does not change.
    """

    options_class = P2OOptions
