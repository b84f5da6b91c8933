"""Environments of `verifiers.v1`, with their own data, tools and rewards."""

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import Field

from cotune.data.splits import hold_out
from cotune.environments.base import PromptFormat
from cotune.environments.environment_kind import EnvironmentKind, Tasks
from cotune.errors import ConfigError
from cotune.types import Task
from cotune.utils.importing import import_object
from cotune.utils.text import named
from cotune.utils.validation import Model

if TYPE_CHECKING:
    from cotune.environments.verifiers_rollouts import VerifiersEnvironment

_FIELD = "environment.environment"


class VerifiersOptions(Model):
    """An environment of `verifiers.v1`, with its own data, tools and rewards."""

    kind: Literal["verifiers"] = "verifiers"
    environment: str
    """An installed taskset's id, or `package.module:name` of a function that returns an environment."""
    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Fields of the environment's config, `{taskset: …, agent: …}`; or the function's arguments."""
    validation: int = Field(default=100, ge=1)
    """Number of questions held out for validation, at most a tenth of all."""
    test: int = Field(default=200, ge=1)
    """Number of questions held out for the final evaluation, at most a fifth of all."""


def from_verifiers(
    environment: Any,
    initial_instruction: str | None = None,
    prompt_format: PromptFormat | None = None,
    *,
    validation: int = 100,
    test: int = 200,
) -> "VerifiersEnvironment":
    """Use an environment of `verifiers.v1`, with its own rollout loop and rewards.

    The trained policy is sampled in place of a served model. The tasks' system prompt becomes the
    initial instruction, in the system message.

    Args:
        environment: an `Env` of `verifiers.v1` with one agent.
        initial_instruction: None is the system prompt that all tasks share.
        prompt_format: None puts the instruction into the system message.
        validation: number of questions held out for validation, at most a tenth of all.
        test: number of questions held out for the final evaluation, at most a fifth.

    Raises:
        ConfigError: `verifiers` is not installed, or the environment cannot be trained on.
    """
    rollouts = _rollouts()
    rollouts.check(environment)
    rows = rollouts.rows(environment)
    systems = {_system(row) for row in rows}
    shared = systems.pop() if len(systems) == 1 else ""
    tasks = _splits(
        [_task(f"train-{i}", row, shared) for i, row in enumerate(rows)], validation, test
    )
    return rollouts.VerifiersEnvironment(
        rollouts.Served(environment),
        tasks,
        shared if initial_instruction is None else initial_instruction,
        prompt_format or PromptFormat(role="system"),
    )


def verifiers_environment(options: VerifiersOptions, tasks: Tasks | None) -> "VerifiersEnvironment":
    """Build the environment of a run file; ConfigError for one that cannot be loaded or trained on.

    It brings its own tasks; `tasks` is None.
    """
    return from_verifiers(_loaded(options), validation=options.validation, test=options.test)


def _rollouts() -> Any:
    """Import what needs the package; ConfigError if that is missing or too old or new."""
    installed = "no such package"
    try:
        installed = f"verifiers {version('verifiers')}"
        return import_module("cotune.environments.verifiers_rollouts")
    except ImportError as error:  # a missing package is one
        raise ConfigError(
            "environment.kind verifiers needs the package verifiers with verifiers.v1; there is "
            f"{installed} ({error}); install it: pip install 'cotune[verifiers]'"
        ) from error


def _loaded(options: VerifiersOptions) -> Any:
    """Return the result of the environment's loader."""
    rollouts = _rollouts()
    try:
        if ":" in options.environment:
            return import_object(options.environment, _FIELD)(**options.args)
        return rollouts.load(options.environment, options.args)
    except ConfigError:
        raise
    except Exception as error:  # a third-party package may raise anything
        raise ConfigError(
            f"{_FIELD}: {options.environment!r} cannot be loaded by verifiers "
            f"{version('verifiers')} ({named(error)}); install it, or change environment.args"
        ) from error


def _splits(tasks: Sequence[Task], validation: int, test: int) -> dict[str, list[Task]]:
    """Hold tasks out by a hash of their prompts."""
    prompts = [json.dumps(task.columns["prompt"], default=str, sort_keys=True) for task in tasks]
    parts = hold_out(prompts, {"validation": validation, "test": test}, _FIELD, "environment")
    return {split: [tasks[i] for i in places] for split, places in parts.items()}


def _system(row: Mapping[str, Any]) -> str:
    first = row["prompt"][0]
    return str(first["content"]) if first["role"] == "system" else ""


def _task(id: str, row: Mapping[str, Any], shared_system: str) -> Task:
    """Return a row as a task: the last message is the question, the others are its context.

    The system prompt that all share is left out, since the instruction takes its place.
    """
    messages = [_message(message, id) for message in row["prompt"]]
    if messages[-1][0] != "user":
        raise ConfigError(
            f"{_FIELD}: the prompt of row {id} ends with a message of the {messages[-1][0]}; "
            "expected the user's"
        )
    if shared_system and messages[0] == ("system", shared_system):
        del messages[0]
    answer = row.get("answer")
    answers = (answer,) if isinstance(answer, str) and answer else ()
    context = tuple(messages[:-1])
    return Task(id, messages[-1][1], answers, context=context, chat=True, columns=dict(row))


def _message(message: Mapping[str, Any], id: str) -> tuple[str, str]:
    """Return a message's role and text; ConfigError for images and tool calls."""
    content = message.get("content")
    if isinstance(content, list):
        parts = cast("list[Mapping[str, Any]]", content)
        if all(part.get("type") == "text" for part in parts):
            content = "".join(str(part["text"]) for part in parts)
    if not isinstance(content, str) or message.get("tool_calls"):
        raise ConfigError(
            f"{_FIELD}: the prompt of row {id} holds more than text; policies are trained only on "
            "text, and examples cannot call tools"
        )
    return str(message["role"]), content


KIND = EnvironmentKind(
    options=VerifiersOptions,
    build=verifiers_environment,
    has_references=False,
    runs_user_code=True,
    extra="verifiers",
)
