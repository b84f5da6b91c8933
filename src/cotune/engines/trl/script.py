"""What a script gives `cotune.JointTrainer`, read and checked: data, limits, rewards, LLM, settings of the run."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter
from transformers import TrainerState
from transformers.trainer_utils import IntervalStrategy
from trl import GRPOConfig

from cotune.config.build import build_llm, describe_llm, initial_instruction
from cotune.config.joint_method import JointMethod
from cotune.config.run_checks import check_columns, check_instruction, check_prompts
from cotune.config.run_file import RulesConfig, parse_recorded
from cotune.data.splits import SPLITS
from cotune.data.trl_data import read_rows, tasks_of
from cotune.engines.joint import RunSettings, settings_of
from cotune.engines.trl.checks import steps_per_batch
from cotune.environments.base import SingleTurnEnvironment, TaskEnvironment
from cotune.environments.prompt_in_data import PromptInData, place_instruction
from cotune.environments.tools import ToolEnvironment
from cotune.environments.trl_factory import from_trl
from cotune.errors import ConfigError, LLMError
from cotune.llm.client import OpenAIOptions, make_first_call
from cotune.llm.own import BankOptions
from cotune.methods.method import RunShape
from cotune.methods.registry import method_of
from cotune.policy.codec import HFCodec, check_template
from cotune.protocols import Environment
from cotune.rewards.functions import RewardFunctions
from cotune.run.json_files import check_folder
from cotune.run.record import Record
from cotune.types import Limits, Task
from cotune.utils.importing import reference_to
from cotune.utils.text import one_line
from cotune.utils.values import type_of

_log = logging.getLogger("cotune")
_EPISODES = 1000  # tasks of an environment that makes its own, without a data set
_TOOL_SECONDS = math.inf  # TRL waits for a tool as long as it takes
_RECORDED_SECONDS = 86400.0  # the same in a run file, whose numbers are finite
_UNLIMITED = 1 << 20  # tokens, of a policy whose context is not known
_RECORDED = ("bf16", "fp16", "loss_type", "num_iterations")
"""Fields of GRPOConfig that a run folder has under their own names."""


@dataclass(frozen=True)
class ScriptData:
    """What a script's data and tools make.

    Attributes:
        parts: the environment's kind and the functions that it was made from, as in a run file.
        chat: whether prompts are chat messages; plain texts are fed without a chat template.
    """

    environment: TaskEnvironment
    parts: Mapping[str, Any]
    chat: bool


def read_data(
    method: JointMethod,
    train_dataset: Any,
    eval_dataset: Any,
    tools: Sequence[Callable[..., Any]] | None,
    environment_factory: Any,
) -> ScriptData:
    """Read what GRPOTrainer takes: data in its form, tools, and a class of environments."""
    if tools and environment_factory:
        raise ConfigError(
            "tools and environment_factory are both given; expected one of them: make the tools methods of "
            "the environment"
        )
    if train_dataset is None and environment_factory is None:
        raise ConfigError(
            'train_dataset is missing; expected rows with a "prompt", or an environment_factory= or '
            "environment= that makes the tasks"
        )
    episodes = [
        {"prompt": [{"role": "user", "content": ""}], "episode": i} for i in range(_EPISODES)
    ]
    rows = episodes
    if train_dataset is not None:
        needs_prompt = environment_factory is None
        rows = read_rows(train_dataset, "train_dataset", needs_prompt)
    validation = [] if eval_dataset is None else read_sets(eval_dataset)
    every_row = [*rows, *(row for _, row in validation)]
    options = method.options
    place = place_instruction(
        every_row,
        method.instruction,
        method_of(options.kind).evolves == "instruction",
        type(method).__name__,
    )
    chat = not any(isinstance(row.get("prompt"), str) for row in every_row)
    if tools and not chat:
        raise ConfigError(
            "tools: the prompts are plain texts; expected chat messages, for which a template has tools"
        )
    tasks = {
        "train": tasks_of(rows, "train", place.text),
        "validation": tasks_of_sets(validation, "validation", place.text),
        "test": [],
    }
    prompt_format = PromptInData(text=place.text)
    environment: TaskEnvironment
    parts: dict[str, Any] = {"kind": "single_turn"}
    if environment_factory is not None:
        factory = reference_to(environment_factory)
        parts = {"kind": "trl", "factory": factory, "seconds": _RECORDED_SECONDS}
        environment = from_trl(
            environment_factory, tasks, place.initial, prompt_format, seconds=_TOOL_SECONDS
        )
    elif tools:
        functions = [reference_to(tool) for tool in tools]
        parts = {"kind": "tools", "tools": functions, "seconds": _RECORDED_SECONDS}
        environment = ToolEnvironment(
            tools, tasks, place.initial, prompt_format, seconds=_TOOL_SECONDS
        )
    else:
        environment = SingleTurnEnvironment(tasks, place.initial, prompt_format)
    return ScriptData(environment, parts, chat)


NamedRow = tuple[str, Mapping[str, Any]]
"""The name of a row's data set, "" if there is only one, and the row."""


def read_sets(eval_dataset: Any) -> list[NamedRow]:
    """Read a data set in TRL's form, or several by name."""
    sets: Mapping[str, Any] = {"": eval_dataset}
    if isinstance(eval_dataset, Mapping):
        sets = cast("Mapping[str, Any]", eval_dataset)
    return [
        (name, row)
        for name, dataset in sets.items()
        for row in read_rows(dataset, f"eval_dataset {name}".strip())
    ]


def tasks_of_sets(rows: Sequence[NamedRow], split: str, text: str) -> list[Task]:
    """Turn each row into a task, as `tasks_of`; its stratum is the name of its data set."""
    tasks = tasks_of([row for _, row in rows], split, text)
    return [replace(task, stratum=name) for (name, _), task in zip(rows, tasks, strict=True)]


def fit_arguments(args: GRPOConfig, questions: int) -> None:
    """Convert epochs in the arguments to steps, in place, as TRL's sampler counts them."""
    per_batch = max(1, (args.generation_batch_size or 1) // (args.num_generations or 1))
    batches = max(1, questions // per_batch)
    epoch = batches * steps_per_batch(args)
    if args.max_steps < 1:
        steps = math.ceil(args.num_train_epochs * epoch)
        args.max_steps = steps + -steps % steps_per_batch(args)
    for name in ("save", "eval", "logging"):
        if getattr(args, f"{name}_strategy") == "epoch":
            setattr(args, f"{name}_strategy", type(getattr(args, f"{name}_strategy"))("steps"))
            setattr(args, f"{name}_steps", epoch)


def keep_best_by_reward(args: GRPOConfig) -> None:
    """Leave the best policy to the run, which keeps it with its instruction, and compare by reward."""
    args.load_best_model_at_end = False
    # The default is the loss, which no evaluation here has.
    if args.metric_for_best_model in ("loss", "eval_loss"):
        args.metric_for_best_model = "eval_reward"
        args.greater_is_better = True


def reward_weights(rewards: RewardFunctions | None, environment: Environment) -> dict[str, float]:
    """Return the weight of each value of a rollout that TRL logs and sums, by name."""
    if rewards is not None:
        return rewards.weights(environment)
    own_reward = getattr(environment, "own_reward", "")
    return {own_reward: 1.0} if own_reward else {}


def refuse_data(environment: object, **arguments: Any) -> None:
    """Raise ConfigError for what is no environment, and for an argument that `environment=` takes the place of."""
    if isinstance(environment, type) or not hasattr(environment, "tasks"):
        raise ConfigError(
            f"environment is {type_of(environment)}; expected an object such as cotune.LadderEnvironment()"
        )
    for name, value in arguments.items():
        if value is not None:
            raise ConfigError(
                f"environment and {name} are both given; expected one of them: an environment brings its own "
                "tasks and tools"
            )


def proposer_of(method: JointMethod, environment: Environment) -> Any:
    """Return the LLM that a method asks, or its options; None if it asks none."""
    if not method_of(method.options.kind).needs_llm:
        return None
    if method.llm is not None:
        return method.llm
    if hasattr(environment, "offline_rules"):
        return RulesConfig()
    name = type(method).__name__
    raise ConfigError(
        f"{name}: llm is missing, and the environment has no offline rules, as cotune.LadderEnvironment has; give a model's "
        f'name, {name}(llm="gpt-4.1"), cotune.OpenAIOptions(model=…, base_url=…) or an object with '
        "complete(prompt)"
    )


def ask_llm(llm: Any, record: Record) -> None:
    """Make one small call to an endpoint before training begins, and record it."""
    if not isinstance(llm, OpenAIOptions):
        return
    try:
        record.charge_check(make_first_call(llm))
    except LLMError as error:
        text = f"llm: a first call failed ({one_line(str(error))[:300]}); correct llm"
        if not llm.optional:
            fix = "or set optional=True in cotune.OpenAIOptions to train without its proposals"
            raise ConfigError(f"{text}, {fix}") from error
        _log.warning("%s", text)


def limits_of(args: GRPOConfig, environment: Environment, context: int | None) -> Limits:
    """Return an episode's limits by the trainer's arguments.

    Completions have `max_completion_length` tokens in all, or half of the context; the prompt has the rest. Questions
    without tools are one turn; an environment with a protocol of its own, such as search, has the turns of `Limits`.
    """
    context = context or _UNLIMITED
    length = args.max_completion_length or context // 2
    turns = 1 if isinstance(environment, SingleTurnEnvironment) else Limits().turns
    if environment.tools:
        calls = args.max_tool_calling_iterations
        turns = 1 + (length if calls is None else calls)
    return Limits(
        turns=turns,
        turn_tokens=length,
        observation_tokens=length,
        trajectory_tokens=length,
        prompt_tokens=max(2, context - length),
    )


def run_shape(args: GRPOConfig) -> RunShape:
    """Return what a method's checks and costs depend on, by the trainer's arguments."""
    group = args.num_generations or 1
    return RunShape(
        group_size=group,
        steps=args.max_steps // steps_per_batch(args),
        questions_per_step=(args.generation_batch_size or group) // group,
    )


def check_script(
    args: GRPOConfig,
    method: JointMethod,
    environment: Environment,
    limits: Limits | None,
    rewards: RewardFunctions | None,
    codec: HFCodec,
    context: int | None,
) -> Limits:
    """Check what a script gives, before weights are loaded and anything is written.

    Args:
        limits: None takes them from `args`.
        context: the policy's context length in tokens; None if its configuration has none.

    Returns:
        The limits of an episode.
    """
    limits = limits or limits_of(args, environment, context)
    kind = method.options.kind
    instruction = initial_instruction(method.instruction, environment)
    check_instruction(environment, instruction, kind)
    llm = proposer_of(method, environment)
    if isinstance(llm, OpenAIOptions | BankOptions):
        build_llm(llm, args.seed, Record())  # its key is set, its file can be read
    try:
        method_of(kind).check(method.options, run_shape(args))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if rewards is not None:
        rewards.trainer_state = TrainerState(max_steps=args.max_steps)
    splits = [split for split in SPLITS if environment.tasks(split)]
    check_columns(rewards, environment, splits)
    check_template(environment, codec, instruction)
    check_prompts(
        environment, codec, instruction, limits, splits, strategy=kind, context_tokens=context
    )
    return limits


def script_settings(
    args: GRPOConfig,
    method: JointMethod,
    environment: Environment,
    limits: Limits,
    rewards: RewardFunctions | None,
    policy: Mapping[str, Any],
    parts: Mapping[str, Any] | None,
) -> RunSettings:
    """Return what a run file would say beside the trainer's arguments, from a script's.

    Args:
        policy: the path of the policy, and the type of its weights.
        parts: `ScriptData.parts`; None for an environment of the script's own.
    """
    if not args.output_dir:
        raise ConfigError("GRPOConfig.output_dir is ''; expected a folder")
    output = Path(args.output_dir)
    check_folder(output, "GRPOConfig.output_dir")
    shape = run_shape(args)
    group = shape.group_size
    optimizer_steps = steps_per_batch(args)
    every = 0
    if args.eval_strategy != IntervalStrategy.NO and environment.tasks("validation"):
        every = max(1, int(args.eval_steps or 1) // optimizer_steps)
    places: dict[str, str] = {}
    if parts is not None:
        layout = cast(TaskEnvironment, environment).served_format("")
        parts = parts if layout else None
        places = layout.places if layout else {}
    llm = proposer_of(method, environment)
    trl_call = args.per_device_train_batch_size * (args.steps_per_generation or 1)
    fields = {
        "library": "trl",
        "name": output.resolve().name,
        "output": output / "cotune",
        "seed": args.seed,
        "policy": {**policy, "template_args": args.chat_template_kwargs or {}},
        "environment": parts or {"kind": "python", "object": reference_to(environment)},
        "rewards": [] if rewards is None else rewards.record(),
        "instruction": {"text": initial_instruction(method.instruction, environment), **places},
        "limits": limits,
        "strategy": method.options,
        "llm": TypeAdapter[Any](type(llm)).dump_python(llm, mode="json")
        if llm is None or hasattr(llm, "describe")
        else {"kind": "python", "object": reference_to(type(llm))},
        "training": {
            "steps": shape.steps,
            "questions_per_step": shape.questions_per_step,
            "group_size": group,
            "mini_batches": optimizer_steps // args.num_iterations,
            "micro_batch_size": 1,
            "learning_rate": args.learning_rate,
            "temperature": args.temperature,
            "kl": args.beta,
            "clip": args.epsilon,
            # A reward function may compare the rollouts of a group: none is cut that TRL's call has whole.
            "rows_per_call": max(trl_call, RunSettings.rows_per_call // group * group),
            "engine_args": {name: getattr(args, name) for name in _RECORDED},
        },
        "evaluation": {"every": every, "before": False},
    }
    settings = settings_of(parse_recorded(fields, "the script"), None)
    return replace(settings, llm_name=describe_llm(llm), llm_checks=None)
