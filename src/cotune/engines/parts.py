"""The parts of a run besides its trainer; the same in every engine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cotune.config.build import build_llm, build_strategy
from cotune.config.resuming import changeable, identity, renewed
from cotune.config.run_file import RunConfig
from cotune.policy.codec import HFCodec
from cotune.protocols import LLM, Environment, Rewards, Strategy
from cotune.run.journal import Journal, Meter
from cotune.run.ledger import Ledger
from cotune.types import Limits


@dataclass(frozen=True)
class Parts:
    """The parts of a run besides its trainer."""

    strategy: Strategy
    environment: Environment
    llm: LLM
    journal: Journal
    meter: Meter
    limits: Limits
    seed: int = 0
    rewards: Rewards | None = None
    """Score in place of the environment; None where it scores."""
    rows_per_call: int = 512
    resample_rounds: int = 0
    """Rounds in which groups without variance are replaced (`cotune.rollout.resampling`)."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """By field, what a resume must find as it was."""
    renew: Callable[[Mapping[str, str]], Mapping[str, str]] = dict
    """Brings what an older version saved as `identity` up to date."""
    frozen: bool = False
    """If set, a `JointTrainer` rolls out and makes no update."""
    changeable: Mapping[str, str] = field(default_factory=dict)
    """By field, what a resume may find changed; then it says so (see `cotune.config.resuming`)."""


def run_parts(
    config: RunConfig,
    environment: Environment,
    codec: HFCodec,
    rewards: Rewards | None,
    journal: Journal,
    ledger: Ledger,
) -> Parts:
    """The parts of a run file.

    Args:
        config: the run file.
        environment, codec, rewards: what was loaded for it.
        journal, ledger: where the run is written down.
    """
    return Parts(
        strategy=build_strategy(config, environment, codec),
        environment=environment,
        llm=build_llm(config, ledger),
        journal=journal,
        meter=ledger,
        limits=config.limits,
        seed=config.seed,
        rewards=rewards,
        rows_per_call=config.training.rows_per_call,
        resample_rounds=config.training.resample_rounds,
        identity=identity(config),
        renew=lambda saved: renewed(saved, config),
        frozen=config.training.frozen,
        changeable=changeable(config),
    )
