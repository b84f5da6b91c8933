"""A Tinker server as an `Engine`. Experimental: docs/how-to/tinker.md says what was run."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cotune.config.cost import tokens_at_most
from cotune.config.run_file import RunConfig
from cotune.engines.engine import Engine, check_package
from cotune.engines.preflight import Check, Preflight
from cotune.engines.tinker.service import read_arguments
from cotune.utils.packages import installed
from cotune.utils.text import hide_secrets

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
        needs = ("training.engine", "training", "policy", "policy files", "environment")
        return [
            Check("training", partial(_arguments, checked.config)),
            Check("server", partial(_server, checked), here=True, needs=needs),
        ]

    def prepare(self, checked: Preflight, console: Console) -> "TinkerJoint":
        from cotune.engines.tinker.run import TinkerJoint

        return TinkerJoint(checked, console)

    def train(self, setup: "TinkerJoint", *, resume: bool) -> None:
        setup.run(resume=resume)

    @staticmethod
    def open_policy(*policy: Any, **options: Any) -> "Coordinator":
        check_package("tinker")
        from cotune.engines.tinker.server_policy import open_policy

        return open_policy(*policy, **options)

    def price(self, config: RunConfig, rollouts: Mapping[str, int]) -> str:
        prices = read_arguments(config).price_per_million
        if prices is None:
            return ""
        tokens = tokens_at_most(config.limits, rollouts)
        dollars = sum(count * getattr(prices, kind) / 1e6 for kind, count in tokens.items())
        counts = ", ".join(f"{kind} {count:,}" for kind, count in tokens.items())
        left_out = "the probe, a second pass of hinted rollouts, storage, and what its cache misses"
        return f"server: at most ${dollars:,.2f} for tokens ({counts}), without {left_out}"


def _arguments(config: RunConfig) -> str:
    return f"training: on the Tinker server at {hide_secrets(read_arguments(config).url)}; experimental"


def _server(checked: Preflight) -> str | None:
    """Connect and probe for `cotune doctor`; a run does so when it is prepared."""
    if checked.starting or not checked.may_call:
        return None
    from cotune.engines.tinker.run import TinkerJoint

    return f"server: {TinkerJoint(checked, Console(quiet=True)).server_facts}"


ENGINE = Tinker()
