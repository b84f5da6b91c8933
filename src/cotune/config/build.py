"""Build the parts of a run, each from its own section of the run file; engine-free."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cotune.environments.base import TaskEnvironment
from cotune.environments.description import description_of
from cotune.environments.math import MathOptions, math_environment
from cotune.environments.search import SearchOptions, search_environment
from cotune.errors import ConfigError
from cotune.llm.client import MeteredLLM, NoLLM, OpenAIClient, OpenAIOptions
from cotune.methods.method import Context, MethodOptions
from cotune.methods.registry import method_of
from cotune.protocols import LLM, Environment, Strategy, TokenRules
from cotune.rewards.functions import RewardFunctions, WeightedReward
from cotune.run.ledger import Ledger
from cotune.types import Limits
from cotune.worlds.arithmetic import ArithmeticEnvironment, ArithmeticOptions
from cotune.worlds.geo import GeoEnvironment, GeoOptions
from cotune.worlds.rules_llm import RulesLLM

if TYPE_CHECKING:  # pydantic models, which the library does without
    from cotune.config.run_file import Environment as EnvironmentOptions
    from cotune.config.run_file import LLMConfig
    from cotune.data.dataset import DatasetConfig
    from cotune.environments.environment_options import InstructionConfig
    from cotune.rewards.reward_options import RewardConfig


def build_environment(
    options: "EnvironmentOptions", dataset: "DatasetConfig | None", instruction: "InstructionConfig"
) -> Environment:
    """Build an environment on the questions of `dataset`, with prompts laid out by `instruction`.

    Raises:
        ConfigError: its data or code cannot be loaded, or it cannot lay out prompts that way.
    """
    if isinstance(options, GeoOptions):
        environment = GeoEnvironment(options)
    elif isinstance(options, ArithmeticOptions):
        environment = ArithmeticEnvironment(options)
    elif isinstance(options, MathOptions):
        environment = math_environment(options)
    elif isinstance(options, SearchOptions):
        environment = search_environment(options)
    else:
        from cotune.environments.environment_options import own_environment

        environment = own_environment(options, dataset)
    if isinstance(environment, TaskEnvironment):
        environment.prompt_format = instruction.format(environment.prompt_format)
    elif places := instruction.places:
        raise ConfigError(
            f"instruction.{next(iter(places))} is set, but {type(environment).__name__} writes its "
            "own messages; derive it from cotune.TaskEnvironment, or remove the field"
        )
    return environment


def initial_instruction(instruction: "InstructionConfig", environment: Environment) -> str:
    """Return the run file's initial instruction, or else the environment's."""
    return environment.initial_instruction if instruction.text is None else instruction.text


def build_rewards(rewards: "Sequence[RewardConfig]") -> RewardFunctions | None:
    """Load reward functions; return None if there are none, and the environment scores."""
    if not rewards:
        return None
    return RewardFunctions(
        [WeightedReward(function=r.function, weight=r.weight, messages=r.messages) for r in rewards]
    )


def build_strategy(
    options: MethodOptions,
    environment: Environment,
    *,
    instruction: str,
    seed: int,
    limits: Limits,
    tokens: TokenRules | None = None,
) -> Strategy:
    """Build the strategy that a method's options describe.

    Args:
        options: the method's options.
        environment: provides the training questions and the texts that an instruction must contain.
        instruction: the initial one.
        seed: seed of all draws.
        limits: token limits; they determine the length limit of evolved texts.
        tokens: the policy's codec; None disables token counting.
    """
    context = Context(
        instruction=instruction,
        tasks=environment.tasks("train"),
        seed=seed,
        required=environment.required,
        description=description_of(environment),
    )
    if tokens is not None:
        context = replace(
            context,
            count_tokens=tokens.count,
            max_tokens=evolved_room(limits, options.kind),
            control_tokens=tokens.control_tokens,
        )
    return method_of(options.kind).build(options, context)


def evolved_room(limits: Limits, strategy: str) -> int:
    """Return the token limit of an evolved text: half of a prompt's, shared among kinds of text.

    The other half is for the question, the chat template and texts that do not evolve.
    """
    return limits.prompt_tokens // (2 * max(1, len(method_of(strategy).evolves)))


def build_llm(options: "LLMConfig | None", seed: int, ledger: Ledger) -> LLM:
    """Return a metered LLM; without options, one that raises when called.

    Args:
        options: `RunConfig.proposer`.
        seed: seed of the offline rules.
        ledger: charged for every call.
    """
    if options is None:
        return NoLLM()
    if isinstance(options, OpenAIOptions):
        return OpenAIClient(options, ledger)
    rules = RulesLLM(seed, options.remedies)
    return MeteredLLM(rules, ledger, model="rules", identity=describe_llm(options))


def describe_llm(options: "LLMConfig | None") -> str:
    """Name the LLM that proposes, for the console and the report."""
    if options is None:
        return "none"
    if isinstance(options, OpenAIOptions):
        return options.describe()
    return f"offline rules ({options.remedies})"
