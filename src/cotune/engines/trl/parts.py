"""What a joint run on TRL is made of besides its trainer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cotune.contracts import LLM, Environment, Rewards, Strategy
from cotune.coordinator import Journal, Meter
from cotune.records import Limits


@dataclass(frozen=True)
class Parts:
    """What a joint run is made of besides the trainer."""

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
    """How often groups without variance are replaced in a step at most (`cotune.resampling`)."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """By field, what a resume must find as it was."""
    renew: Callable[[Mapping[str, str]], Mapping[str, str]] = dict
    """Brings what an older version saved as `identity` up to date."""
    frozen: bool = False
    """Whether the policy stays as it is; then a `JointTrainer` rolls out and makes no update."""
    changeable: Mapping[str, str] = field(default_factory=dict)
    """By field, what a resume may find changed; then it says so (see `cotune.changes`)."""
