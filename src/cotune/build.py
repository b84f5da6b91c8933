"""From a run file to the parts of a run; engine-free."""

from cotune.config import RulesConfig, RunConfig
from cotune.contracts import LLM, Environment, Strategy, TokenRules
from cotune.environments.geo import GeoEnvironment, GeoOptions
from cotune.environments.search import search_environment
from cotune.llm.client import MeteredLLM, NoLLM, OpenAIClient
from cotune.llm.ledger import Ledger
from cotune.llm.rules import RulesLLM
from cotune.preflight import instruction_room
from cotune.strategies.inspo import Inspo, InspoOptions
from cotune.strategies.static import StaticStrategy


def build_environment(config: RunConfig) -> Environment:
    options = config.environment
    if isinstance(options, GeoOptions):
        return GeoEnvironment(options)
    return search_environment(options)


def build_strategy(
    config: RunConfig, environment: Environment, tokens: TokenRules | None = None
) -> Strategy:
    """The run's strategy; `tokens` is the policy's codec, where there is one."""
    instruction = config.instruction or environment.initial_instruction
    options = config.strategy
    if isinstance(options, InspoOptions):
        room = instruction_room(config.limits)
        if tokens is None:
            return Inspo(instruction, options, config.seed)
        return Inspo(instruction, options, config.seed, tokens.count, room, tokens.control_tokens)
    return StaticStrategy(instruction, options)


def build_llm(config: RunConfig, ledger: Ledger) -> LLM:
    """The optimizer LLM, metered. A static run has none: asking it anything is an error."""
    if config.strategy.kind == "static":
        return NoLLM()
    options = config.llm or RulesConfig()
    if isinstance(options, RulesConfig):
        return MeteredLLM(RulesLLM(config.seed, options.remedies), ledger, model="rules")
    return OpenAIClient(options, ledger)


def describe_llm(config: RunConfig) -> str:
    """Which LLM proposes, for the console and the report."""
    if config.strategy.kind == "static":
        return "none"
    options = config.llm or RulesConfig()
    if isinstance(options, RulesConfig):
        return f"offline rules ({options.remedies})"
    return f"{options.model} at {options.base_url or 'api.openai.com'}"
