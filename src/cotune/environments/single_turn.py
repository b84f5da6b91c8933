"""Questions answered in one turn."""

from typing import Literal

from cotune.environments.base import SingleTurnEnvironment
from cotune.environments.environment_kind import EnvironmentKind
from cotune.utils.validation import Model


class SingleTurnOptions(Model):
    """Questions of `dataset`, answered in one turn and scored by `rewards`."""

    kind: Literal["single_turn"] = "single_turn"


KIND = EnvironmentKind(
    options=SingleTurnOptions,
    build=lambda options, tasks: SingleTurnEnvironment(tasks or {}, ""),
    dataset="required",
)
