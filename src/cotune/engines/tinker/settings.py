"""`training.engine_args` of this engine, and the fields of a run file that it refuses; without the SDK."""

import os

from pydantic import Field, ValidationError

from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError
from cotune.utils.validation import Model, describe

HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"
"""The hosted service; the SDK's default."""
PRICES = "https://tinker-docs.thinkingmachines.ai/tinker/models/"
ALPHA = 32  # LoRA's, on every server


class Prices(Model):
    """Dollars for a million tokens of each kind."""

    prefill: float = Field(ge=0)
    cached: float = Field(ge=0)
    sample: float = Field(ge=0)
    train: float = Field(ge=0)


class TinkerArguments(Model):
    """What `training.engine_args` can hold."""

    base_url: str | None = None
    """The server's address; null is the variable TINKER_BASE_URL, or else the hosted service."""
    api_key_env: str = "TINKER_API_KEY"
    """The environment variable that holds the key; a server of one's own may need none."""
    base_model: str | None = None
    """The server's name of the model, if it is not policy.path."""
    row_multiple: int = Field(default=1, ge=1)
    """For a server that compiles for each shape (SkyRL on jax): send multiples of this many rows, and ask for
    `limits.turn_tokens` in every turn."""
    price_per_million: Prices | None = None
    """The server's prices, for `cotune plan`."""

    @property
    def url(self) -> str:
        """Return the server's address."""
        return (self.base_url or os.environ.get("TINKER_BASE_URL") or HOSTED).rstrip("/")

    @property
    def key(self) -> str:
        """Return the key; ConfigError if the hosted service needs one and there is none."""
        key = os.environ.get(self.api_key_env)
        if not key and self.url == HOSTED:
            unset = f"the environment variable {self.api_key_env} is not set; put the service's key into it"
            raise ConfigError(
                f"training.engine_args.api_key_env: {unset}, or name a server by base_url"
            )
        return key or "tml-none"  # the SDK wants one, in this form


def read_arguments(config: RunConfig) -> TinkerArguments:
    """Return `training.engine_args`; ConfigError if one is invalid, or the run file asks for what the API has not."""
    training = config.training
    lora = config.policy.lora
    if lora is None:
        raise ConfigError("policy.lora: missing; a Tinker server trains an adapter: set {rank: 16}")
    server = "remove it: the server decides"
    not_here = "remove it, or set training.engine: trl"
    # A last stage needs a teacher's distributions.
    distils = getattr(config.strategy, "distil_steps", 0) > 0
    problems = {
        f"policy.lora.alpha {lora.alpha}": lora.alpha != ALPHA and f"set {ALPHA}, as servers have",
        f"policy.lora.dropout {lora.dropout}": lora.dropout > 0 and "set 0",
        "policy.lora.target_modules": lora.target_modules != "all-linear" and server,
        f"policy.dtype {config.policy.dtype}": config.policy.dtype != "auto" and server,
        f"training.precision {training.precision}": training.precision != "auto" and server,
        f"training.temperature {training.temperature}": training.temperature != 1
        and "set 1: servers report log-probabilities of temperature 1, whatever they sample at",
        f"training.kl {training.kl}": training.kl > 0 and "set 0: the API has no reference policy",
        "training.frozen": training.frozen and not_here,
        "strategy.distil_steps": distils and not_here,
        "logging.report_to": bool(config.logging.report_to) and not_here,
    }
    for field, fix in problems.items():
        if fix:
            raise ConfigError(f"{field} is not possible with training.engine tinker; {fix}")
    try:
        return TinkerArguments.model_validate(training.engine_args)
    except ValidationError as error:
        problem = describe(error, TinkerArguments)
        raise ConfigError(f"training.engine_args.{problem}") from None
