"""Build the parts of a run, each from its own section of the run file; engine-free."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from cotune.config.run_checks import without_too_long
from cotune.config.run_file import (
    InstructionConfig,
    LLMConfig,
    RewardConfig,
    RulesConfig,
    RunConfig,
    ScriptRun,
)
from cotune.data.dataset import DatasetConfig, read_dataset
from cotune.environments.base import TaskEnvironment, description_of
from cotune.environments.registry import kind_of
from cotune.errors import ConfigError
from cotune.llm.client import MeteredLLM, NoLLM, OpenAIClient, OpenAIOptions
from cotune.llm.own import BankLLM, BankOptions, OwnLLMOptions, own_llm
from cotune.methods.method import Context, MethodOptions
from cotune.methods.registry import method_of
from cotune.policy.policy_files import policy_path
from cotune.protocols import LLM, Codec, Environment, Rewards, Strategy, TokenRules
from cotune.rewards.functions import RewardFunctions, WeightedReward
from cotune.rollout.coordinator import Coordinator, RolloutSettings
from cotune.run.record import Record
from cotune.types import Limits
from cotune.utils.progress import begin

_SEPARATOR = 8  # tokens between an evolved text and what stands beside it, generously


def build_environment(
    options: Any, dataset: DatasetConfig | None, instruction: InstructionConfig
) -> Environment:
    """Build an environment on the questions of `dataset`, with prompts laid out by `instruction`.

    Raises ConfigError: its data or code cannot be loaded, or it cannot lay out prompts that way.
    """
    kind = kind_of(options.kind)
    tasks = None if dataset is None else read_dataset(dataset)
    environment = kind.build(options, tasks)
    places: Any = instruction.places
    if isinstance(environment, TaskEnvironment):
        environment.prompt_format = replace(environment.prompt_format, **places)
    elif places:
        raise ConfigError(
            f"instruction.{next(iter(places))} is set, but {type(environment).__name__} writes its "
            "own messages; derive it from cotune.TaskEnvironment, or remove the field"
        )
    return environment


def run_environment(config: RunConfig, codec: Codec | None = None) -> Environment:
    """Build a run file's environment, without the questions that `dataset.drop_too_long` leaves out.

    Raises as `build_environment`, and ConfigError if `drop_too_long` is set for an environment that is no
    `TaskEnvironment`, or needs the policy's codec and it cannot be loaded.
    """
    environment = build_environment(config.environment, config.dataset, config.instruction)
    if isinstance(config, ScriptRun) and isinstance(environment, TaskEnvironment):
        return environment.with_tasks({})  # the script has its questions
    if config.dataset is None or not config.dataset.drop_too_long:
        return environment
    if not isinstance(environment, TaskEnvironment):
        raise ConfigError(
            f"dataset.drop_too_long is true, but {type(environment).__name__} is not a "
            "cotune.TaskEnvironment; leave the questions out of its tasks, or remove the field"
        )
    if codec is None:
        from cotune.policy.local_policy import load_codec

        codec = load_codec(config.policy)
    return without_too_long(
        environment,
        codec,
        initial_instruction(config.instruction.text, environment),
        config.limits.prompt_tokens,
        config.strategy.kind,
    )


def run_policy(
    config: RunConfig,
    environment: Environment,
    *,
    rewards: Rewards | None = None,
    best: Path | None = None,
    temperature: float | None = None,
) -> Coordinator:
    """Return a coordinator of the policy, with the run file's limits, seed and chat template.

    Args:
        rewards: score instead of the environment.
        best: the run's `best/`, to load instead of the policy that training starts from.
        temperature: None for that of training.
    """
    start = policy_path(config.policy.path)
    begin("loading the policy")
    import torch

    from cotune.policy.local_policy import local_coordinator
    from cotune.policy.precision import casting, weights_dtype

    if config.threads is not None:
        torch.set_num_threads(config.threads)
    policy = config.policy
    training = config.training
    sampled = temperature or training.temperature
    return local_coordinator(
        best or start,
        environment,
        RolloutSettings(config.limits, sampled, config.seed, training.rows_per_call),
        dtype=weights_dtype(policy, training.precision),
        # The run folder may come from another machine, with the local base in another place.
        base=start if best else None,
        template_args=policy.template_args,
        chat_template=None if best else policy.chat_template,  # best/ has it
        rewards=rewards,
        casts=casting(policy, training.precision, training.engine_args),
    )


def initial_instruction(text: str | None, environment: Environment) -> str:
    """Return the initial instruction of a run file or a method, or else (None) the environment's."""
    return environment.initial_instruction if text is None else text


def build_rewards(rewards: Sequence[RewardConfig]) -> RewardFunctions | None:
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
        limits: determine the length limit of evolved texts.
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
            # The other half is for the question, the chat template and texts that do not evolve.
            max_tokens=max(1, limits.prompt_tokens // 2 - _SEPARATOR),
            control_tokens=tokens.control_tokens,
        )
    return method_of(options.kind).build(options, context)


def build_llm(
    options: "LLM | LLMConfig | None",
    seed: int,
    record: Record,
    environment: Environment | None = None,
) -> LLM:
    """Return a metered LLM; without options, one that raises when called.

    A bank is not metered: no model is asked.

    Args:
        seed: of the offline rules, and of an object that a run file names and that has an attribute `seed`.
        record: charged for every call.
        environment: its offline rules are what `llm: {kind: rules}` names.
    """
    if options is None:
        return NoLLM()
    if isinstance(options, RulesConfig):
        rules = cast(Any, environment).offline_rules(seed)
        return MeteredLLM(rules, record, model="rules", identity=options.describe())
    if isinstance(options, BankOptions):
        return BankLLM(options)
    if isinstance(options, OwnLLMOptions):
        llm = own_llm(options)
        if hasattr(llm, "seed"):
            llm.seed = seed  # pyright: ignore[reportAttributeAccessIssue]
        return MeteredLLM(llm, record, options.describe(), optional=options.optional)
    if isinstance(options, OpenAIOptions):
        return OpenAIClient(options, record)
    return MeteredLLM(options, record, model=type(options).__name__)


def describe_llm(options: "LLM | LLMConfig | None") -> str:
    """Name what proposes, for the console and the report."""
    if options is None:
        return "none"
    describe = getattr(options, "describe", None)
    return type(options).__name__ if describe is None else describe()
