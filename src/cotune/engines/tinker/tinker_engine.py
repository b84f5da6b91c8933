"""A Tinker server as an `Engine`. Experimental: docs/how-to/tinker.md says what was run."""

from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cotune.engines.engine import Engine, check_package
from cotune.engines.preflight import Check, Preflight
from cotune.engines.tinker.settings import check_alive, read_arguments
from cotune.utils.packages import installed

if TYPE_CHECKING:
    from cotune.engines.tinker.run import TinkerJoint
    from cotune.rollout.coordinator import Coordinator


class Tinker(Engine):
    """Train on a server; this process rolls out and evolves."""

    def check_installed(self) -> None:
        check_package("tinker")

    def installation(self) -> str:
        tried = "run on SkyRL 0.3.0's server with 0.24.1, and not on the hosted service"
        return f"engine tinker: {installed('tinker')}, experimental: {tried}"

    def check(self, checked: Preflight) -> list[Check]:
        arguments = partial(read_arguments, checked.config)
        return [
            Check("training", lambda: f"training: on the Tinker server at {arguments().label}"),
            Check("server", lambda: check_alive(arguments()), here=True, needs=("training",)),
        ]

    def prepare(self, checked: Preflight, console: Console) -> "TinkerJoint":
        from cotune.engines.tinker.run import TinkerJoint

        return TinkerJoint(checked, console)

    def train(self, setup: "TinkerJoint", *, resume: bool) -> None:
        setup.run(resume=resume)

    @staticmethod
    def open_policy(*policy: Any, **options: Any) -> "Coordinator":
        check_package("tinker")
        from cotune.engines.tinker.sampler import open_policy

        return open_policy(*policy, **options)


ENGINE = Tinker()
