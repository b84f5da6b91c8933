"""Build the parts of a run from a run file; engine-free."""

from cotune.config.run_file import RulesConfig, RunConfig
from cotune.config.strategy import strategy_of
from cotune.environments.base import TaskEnvironment
from cotune.environments.environment_options import own_environment
from cotune.environments.math import MathOptions, math_environment
from cotune.environments.search import SearchOptions, search_environment
from cotune.errors import ConfigError
from cotune.llm.client import MeteredLLM, NoLLM, OpenAIClient
from cotune.protocols import LLM, Environment, Strategy, TokenRules
from cotune.rewards.functions import RewardFunctions, WeightedReward
from cotune.run.ledger import Ledger
from cotune.worlds.arithmetic import ArithmeticEnvironment, ArithmeticOptions
from cotune.worlds.geo import GeoEnvironment, GeoOptions
from cotune.worlds.rules_llm import RulesLLM


def build_environment(config: RunConfig) -> Environment:
    """Return the run file's environment, with prompts laid out as `instruction` says."""
    environment = _environment(config)
    places = config.instruction.places
    if isinstance(environment, TaskEnvironment):
        environment.prompt_format = config.instruction.format(environment.prompt_format)
    elif places:
        raise ConfigError(
            f"instruction.{next(iter(places))} is set, but {type(environment).__name__} writes its "
            "own messages; derive it from cotune.TaskEnvironment, or remove the field"
        )
    return environment


def _environment(config: RunConfig) -> Environment:
    options = config.environment
    if isinstance(options, GeoOptions):
        return GeoEnvironment(options)
    if isinstance(options, ArithmeticOptions):
        return ArithmeticEnvironment(options)
    if isinstance(options, MathOptions):
        return math_environment(options)
    if isinstance(options, SearchOptions):
        return search_environment(options)
    return own_environment(options, config.dataset)


def initial_instruction(config: RunConfig, environment: Environment) -> str:
    """Return the run file's initial instruction, or else the environment's."""
    text = config.instruction.text
    return environment.initial_instruction if text is None else text


def build_rewards(config: RunConfig) -> RewardFunctions | None:
    """Return the run file's reward functions; None if the environment scores."""
    if not config.rewards:
        return None
    return RewardFunctions(
        [
            WeightedReward(function=r.function, weight=r.weight, messages=r.messages)
            for r in config.rewards
        ]
    )


def build_strategy(
    config: RunConfig, environment: Environment, tokens: TokenRules | None = None
) -> Strategy:
    """Build a run file's strategy; `tokens` is the policy's codec, if there is one."""
    return strategy_of(
        config.strategy,
        environment,
        instruction=initial_instruction(config, environment),
        seed=config.seed,
        limits=config.limits,
        tokens=tokens,
    )


def build_llm(config: RunConfig, ledger: Ledger) -> LLM:
    """Return the metered optimizer LLM; `NoLLM`, which raises when called, if the run has none."""
    if not config.method.needs_llm:
        return NoLLM()
    options = config.llm or RulesConfig()
    if isinstance(options, RulesConfig):
        rules = RulesLLM(config.seed, options.remedies)
        return MeteredLLM(rules, ledger, model="rules", identity=describe_llm(config))
    return OpenAIClient(options, ledger)


def describe_llm(config: RunConfig) -> str:
    """Name the LLM that proposes, for the console and the report."""
    if not config.method.needs_llm:
        return "none"
    options = config.llm or RulesConfig()
    if isinstance(options, RulesConfig):
        return f"offline rules ({options.remedies})"
    return options.describe()
