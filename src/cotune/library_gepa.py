"""GEPA for a trainer of one's own: the instruction is searched for first, then GRPO trains under it."""

from pathlib import Path
from typing import Any

from cotune.contracts import LLM, Environment, Strategy, TokenRules
from cotune.environments.description import description_of
from cotune.environments.geo import GeoEnvironment
from cotune.library import Evolving, GivenRewards
from cotune.llm.client import OpenAIOptions
from cotune.preflight import evolved_room
from cotune.records import Limits
from cotune.strategies.gepa import Gepa, GepaOptions


class GEPA(Evolving):
    """GEPA on the instruction before the first step (arXiv 2507.19457), then GRPO under the best one.

    The search spends its whole `budget` of rollouts at step 1, under the policy as it is then.

    Args:
        environment: where tasks come from, how actions are answered and scored.
        llm: the optimizer LLM, which reflects on failures; as for `INSPO`.
        options: the method's numbers; or give its fields as keywords, not both.
        limits: of an episode, in tokens and turns.
        instruction: the initial instruction; None is the environment's.
        seed: of the order of tasks and of all draws.
        folder: the run folder; None is `cotune` in the trainer's `output_dir`.
        rewards: functions as TRL takes them, each alone or with its weight; they score in the
            environment's place. See `cotune.RewardFunctions`.

    Raises:
        ConfigError: an option or an instruction that cannot work, or no LLM.
    """

    kind = "gepa"
    options_class = GepaOptions
    offline = (GeoEnvironment,)

    def __init__(
        self,
        *,
        environment: Environment,
        llm: LLM | OpenAIOptions | None = None,
        options: GepaOptions | None = None,
        limits: Limits | None = None,
        instruction: str | None = None,
        seed: int = 0,
        folder: str | Path | None = None,
        rewards: GivenRewards = None,
        **option_fields: Any,
    ) -> None:
        super().__init__(
            environment, llm, options, option_fields, limits, instruction, seed, folder, rewards
        )

    def build_strategy(self, tokens: TokenRules) -> Strategy:
        return Gepa(
            self.instruction,
            self.environment.tasks("train"),
            self.options,
            self.seed,
            tokens.count,
            evolved_room(self.limits, self.kind),
            tokens.control_tokens,
            self.environment.required,
            description_of(self.environment),
        )
