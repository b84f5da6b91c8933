"""GRPOTrainer's data, tools and environments, as an environment of cotune's."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from trl import GRPOConfig

from cotune.config.joint_method import JointMethod
from cotune.data.trl_data import read_rows, tasks_of
from cotune.engines.trl.checks import steps_per_batch
from cotune.environments.base import SingleTurnEnvironment, TaskEnvironment
from cotune.environments.prompt_in_data import PromptInData, place_instruction
from cotune.environments.tools import ToolEnvironment
from cotune.environments.trl_factory import from_trl
from cotune.errors import ConfigError
from cotune.methods.registry import method_of
from cotune.types import Task
from cotune.utils.importing import reference_to

_EPISODES = 1000
"""Tasks of an environment that makes its own, without a data set."""
_TOOL_SECONDS = math.inf
"""TRL waits for a tool as long as it takes."""
_RECORDED_SECONDS = 86400.0
"""The same in a run file, whose numbers are finite."""


@dataclass(frozen=True)
class ScriptData:
    """What a script's data and tools make.

    Attributes:
        environment: supplies the tasks, calls the tools and resets the script's environments.
        parts: its kind and the functions that it was made from, as in a run file.
        chat: whether prompts are chat messages; plain texts are fed without a chat template.
    """

    environment: TaskEnvironment
    parts: Mapping[str, Any]
    chat: bool


def read_data(
    args: GRPOConfig,
    method: JointMethod,
    train_dataset: Any,
    eval_dataset: Any,
    tools: Sequence[Callable[..., Any]] | None,
    environment_factory: Any,
) -> ScriptData:
    """Read what GRPOTrainer takes: data in its form, tools, and a class of environments.

    Raises:
        ConfigError: the data has no usable prompts, or two arguments exclude each other.
    """
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
        rows = read_rows(train_dataset, "train_dataset", _rows_needed(args), needs_prompt)
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


def _rows_needed(args: GRPOConfig) -> int | None:
    """Return the rows that are read of a stream; None if `max_steps` does not say."""
    if args.max_steps < 1:
        return None
    questions = (args.generation_batch_size or 1) // (args.num_generations or 1)
    return -(-args.max_steps // steps_per_batch(args)) * max(1, questions)


def fit_arguments(args: GRPOConfig, questions: int) -> None:
    """Say in steps what the arguments say in epochs, as TRL's sampler counts them.

    Args:
        args: changed in place.
        questions: training questions.
    """
    batches = max(
        1, questions // max(1, (args.generation_batch_size or 1) // (args.num_generations or 1))
    )
    epoch = batches * steps_per_batch(args)
    if args.max_steps < 1:
        steps = math.ceil(args.num_train_epochs * epoch)
        args.max_steps = steps + -steps % steps_per_batch(args)
    for name in ("save", "eval", "logging"):
        if getattr(args, f"{name}_strategy") == "epoch":
            setattr(args, f"{name}_strategy", type(getattr(args, f"{name}_strategy"))("steps"))
            setattr(args, f"{name}_steps", epoch)


def keep_best_by_reward(args: GRPOConfig) -> None:
    """Leave the best policy to the run, which keeps it with its instruction, and compare by reward.

    Args:
        args: changed in place.
    """
    args.load_best_model_at_end = False
    # The default is the loss, which no evaluation here has.
    if args.metric_for_best_model in ("loss", "eval_loss"):
        args.metric_for_best_model = "eval_reward"
        args.greater_is_better = True
