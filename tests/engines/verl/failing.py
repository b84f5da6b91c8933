"""An environment that fails as a file says."""

import json
from collections.abc import Sequence
from pathlib import Path

from cotune.errors import ConfigError
from cotune.types import Action, Response, Trajectory
from cotune_lab.worlds.geo import GeoEnvironment, GeoOptions


class FailingEnvironment(GeoEnvironment):
    """The bundled world's, until it raises.

    Args:
        fault: a JSON file: `raise` names what, once so many rollouts as `after` were scored in this
            process.
    """

    def __init__(self, fault: str) -> None:
        super().__init__(GeoOptions(train=8, validation=1, test=2))
        self._fault = Path(fault)
        self._scored = 0

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        fault = json.loads(self._fault.read_text(encoding="utf-8"))
        if self._scored >= fault["after"]:
            if fault["raise"] == "ConfigError":
                raise ConfigError("environment.args: the search key is refused; set another")
            return [next(iter(())) for _ in actions]
        return super().respond(actions)

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        self._scored += 1
        return super().score(trajectory)
