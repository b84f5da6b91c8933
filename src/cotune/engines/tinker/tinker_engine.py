"""A Tinker server as an `Engine`. Experimental: docs/how-to/tinker.md says what was run."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cotune.config.run_file import RunConfig
from cotune.engines.engine import Engine, check_package
from cotune.engines.preflight import Check, Preflight
from cotune.engines.tinker.settings import PRICES, read_arguments
from cotune.types import Limits
from cotune.utils.packages import installed
from cotune.utils.text import hide_secrets

if TYPE_CHECKING:
    from cotune.engines.tinker.run import TinkerJoint
    from cotune.rollout.coordinator import Coordinator


class Tinker(Engine):
    """Train on a server; this process rolls out and evolves."""

    def samples_alike(self, config: RunConfig) -> bool:
        return True

    def check_installed(self) -> None:
        check_package("tinker")

    def installation(self) -> str:
        tried = "run on SkyRL 0.3.0's server with 0.24.1, and not on the hosted service"
        return f"engine tinker: {installed('tinker')}, experimental: {tried}"

    def check(self, checked: Preflight) -> list[Check]:
        needs = ("training.engine", "training", "policy", "policy files", "environment")
        url = lambda: read_arguments(checked.config).url  # noqa: E731
        return [
            Check(
                "training",
                lambda: f"training: on the Tinker server at {hide_secrets(url())}; experimental",
            ),
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
        from cotune.engines.tinker.sampler import open_policy

        return open_policy(*policy, **options)

    def price(self, config: RunConfig, rollouts: Mapping[str, int]) -> str:
        prices = read_arguments(config).price_per_million
        if prices is None:
            fields = "price_per_million: {prefill: …, cached: …, sample: …, train: …}"
            where = f"in dollars; the hosted service's are at {PRICES}"
            return f"server: price unknown; set training.engine_args.{fields}, {where}"
        tokens = tokens_at_most(config.limits, rollouts)
        dollars = sum(count * getattr(prices, kind) / 1e6 for kind, count in tokens.items())
        counts = ", ".join(f"{kind} {count:,}" for kind, count in tokens.items())
        left_out = "the probe, a second pass of hinted rollouts, storage, and what its cache misses"
        return f"server: at most ${dollars:,.2f} for tokens ({counts}), without {left_out}"


def tokens_at_most(limits: Limits, rollouts: Mapping[str, int]) -> dict[str, int]:
    """Return the tokens of each kind that has a price that rollouts, counted by purpose, use at most.

    A turn prefills the prompt or the observation before it; what was sent with earlier turns is cached.
    """
    prompt = limits.prompt_tokens
    turn = limits.turn_tokens + limits.observation_tokens
    ends = [turns * turn - limits.observation_tokens for turns in range(1, limits.turns + 1)]
    ends = [prompt + min(end, limits.trajectory_tokens) for end in ends]
    observed = min((limits.turns - 1) * limits.observation_tokens, limits.trajectory_tokens)
    sampled = min(limits.turns * limits.turn_tokens, limits.trajectory_tokens)
    of_rollout = {"prefill": prompt + observed, "cached": sum(ends[:-1]), "sample": sampled}
    tokens = {kind: count * sum(rollouts.values()) for kind, count in of_rollout.items()}
    return {**tokens, "train": ends[-1] * rollouts["train"]}


def _server(checked: Preflight) -> str | None:
    """Connect and probe for `cotune doctor`; a run, when it is prepared, once it is known that a server is there."""
    from cotune.engines.tinker.service import check_alive

    if checked.starting:
        check_alive(read_arguments(checked.config).url)
    if checked.starting or not checked.may_call:
        return None
    from cotune.engines.tinker.run import TinkerJoint

    return f"server: {TinkerJoint(checked, Console(quiet=True)).facts}"


ENGINE = Tinker()
