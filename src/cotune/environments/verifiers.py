"""Environments of the `verifiers` library, with their own data, tools and rubric."""

import json
import signal
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, cast

from cotune.data.splits import SHARES, sha
from cotune.environments.base import PromptFormat
from cotune.environments.environment_options import VerifiersOptions
from cotune.environments.verifiers_rollouts import VerifiersEnvironment
from cotune.errors import ConfigError
from cotune.types import Task
from cotune.utils.background import BackgroundLoop
from cotune.utils.importing import import_object
from cotune.utils.text import named

_FIELD = "environment.environment"


def from_verifiers(
    environment: Any,
    initial_instruction: str | None = None,
    prompt_format: PromptFormat | None = None,
    *,
    validation: int = 100,
    test: int = 200,
) -> VerifiersEnvironment:
    """Use an environment of the `verifiers` library, with its own rollout loop and rubric.

    The trained policy is sampled in place of a served model. The environment's system prompt
    becomes the initial instruction, in the system message.

    Args:
        environment: a `MultiTurnEnv` (SingleTurnEnv, ToolEnv, StatefulToolEnv or a subclass), or an
            `Env` of `verifiers.v1` with one agent.
        initial_instruction: None is its system prompt.
        prompt_format: None puts the instruction into the system message.
        validation: number of questions for validation, of its evaluation data; without such data
            they are held out of its training data, at most a tenth.
        test: number of questions for the final evaluation, chosen the same way, at most a fifth.

    Raises:
        ConfigError: `verifiers` is not installed, or the environment cannot be trained on.
    """
    _version()
    api = _interface(environment)
    api.check(environment)
    trained, evaluated, system = api.rows(environment)
    rows = _rows(trained, "train")
    held_out = None if evaluated is None else _rows(evaluated, "eval")
    own = system or _common_system([*rows, *(held_out or [])])
    tasks = {
        split: [_task(id, row, own) for id, row in chosen]
        for split, chosen in _splits(rows, held_out, validation, test).items()
    }
    loop = BackgroundLoop()
    return VerifiersEnvironment(
        api.api(environment, tasks, loop),
        tasks,
        own if initial_instruction is None else initial_instruction,
        prompt_format or PromptFormat(role="system"),
        loop,
    )


def verifiers_environment(options: VerifiersOptions) -> VerifiersEnvironment:
    """Build the environment of a run file; ConfigError for one that cannot be loaded or trained on."""
    _version()
    return from_verifiers(
        _loaded(options),
        options.initial_instruction,
        validation=options.validation,
        test=options.test,
    )


def _interface(environment: Any) -> Any:
    """Import the module for an environment's interface: the newer one or the classic one."""
    module = type(environment).__module__
    newer = callable(getattr(environment, "run_episode", None)) or not _has_classic()
    name = "verifiers_v1" if newer else "verifiers_classic"
    try:
        return import_module(f"cotune.environments.{name}")
    except ImportError as error:
        raise ConfigError(
            f"{_FIELD} is {module}.{type(environment).__name__}, which verifiers {_version()} cannot "
            f"run ({error}); install one of the versions that cotune[verifiers] allows"
        ) from error


def _has_classic() -> bool:
    return find_spec("verifiers.legacy") is not None


def _version() -> str:
    """Return the version of verifiers; ConfigError if it is not installed."""
    try:
        return version("verifiers")
    except PackageNotFoundError as error:
        raise ConfigError(
            f"environment.kind verifiers needs the package verifiers ({error}); install it: "
            "pip install 'cotune[verifiers]'"
        ) from error


def _loaded(options: VerifiersOptions) -> Any:
    """Return the result of the environment's loader, with signal handlers unchanged."""
    with _signals_kept():
        try:
            if ":" in options.environment:
                return import_object(options.environment, _FIELD)(**options.args)
            return _by_id(options.environment, options.args)
        except ConfigError:
            raise
        except Exception as error:  # a third-party package may raise anything
            reason = named(error)
            raise ConfigError(
                f"{_FIELD}: {options.environment!r} cannot be loaded by verifiers {_version()} "
                f"({reason}); install it, or change environment.args"
            ) from error


def _by_id(id: str, args: Mapping[str, Any]) -> Any:
    module = id.replace("-", "_")
    newer = find_spec(f"verifiers.v1.tasksets.{module}") is not None or (
        find_spec(module) is not None and not hasattr(import_module(module), "load_environment")
    )
    name = "verifiers_v1" if newer or not _has_classic() else "verifiers_classic"
    return import_module(f"cotune.environments.{name}").load(id, args)


@contextmanager
def _signals_kept() -> Generator[None]:
    """Restore signal handlers: environments of verifiers replace them when they are made."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


Row = tuple[str, dict[str, Any]]


def _rows(dataset: Any, source: str) -> list[Row]:
    """Return a data set's rows, each with an id."""
    return [(f"{source}-{i}", dict(row)) for i, row in enumerate(dataset)]


def _splits(
    rows: Sequence[Row], held_out: Sequence[Row] | None, validation: int, test: int
) -> dict[str, list[Row]]:
    """Return rows by split; rows are held out of the training data by a hash of their texts."""
    if held_out is None:
        counts = {"test": min(test, len(rows) // SHARES["test"])}
        counts["validation"] = min(validation, len(rows) // SHARES["validation"])
        pool = sorted(rows, key=_digest)
    else:
        wanted = validation + test
        counts = {"validation": min(validation, len(held_out) * validation // wanted)}
        counts["test"] = min(test, len(held_out) - counts["validation"])
        pool = list(held_out)
    if not all(counts.values()):
        least = "2 questions for evaluation" if held_out is not None else "10 questions"
        found = len(rows) if held_out is None else len(held_out)
        raise ConfigError(f"{_FIELD} has {found}; expected at least {least}: give it more data")
    first = counts["validation"]
    if held_out is None:
        first = _between_prompts(pool, first)
    last = first + counts["test"]
    if held_out is None:
        last = _between_prompts(pool, last)
    chosen = {"validation": pool[:first], "test": pool[first:last]}
    taken = {id for split in chosen.values() for id, _ in split}
    return {"train": [row for row in rows if row[0] not in taken], **chosen}


def _between_prompts(pool: Sequence[Row], end: int) -> int:
    """Move an end of a split so that rows with the same prompt stay together.

    If that is a fifth of the rows or more, as in environments whose rows all share a prompt, it stays.
    """
    moved = end
    while moved < len(pool) and _digest(pool[moved]) == _digest(pool[end - 1]):
        moved += 1
    return moved if moved - end < len(pool) / 5 else end


def _digest(row: Row) -> str:
    return sha(json.dumps(row[1].get("prompt"), default=str, sort_keys=True))


def _common_system(rows: Sequence[Row]) -> str:
    """Return the system prompt that all rows share; "" if they have none, or different ones."""
    found = {_system(row) for _, row in rows}
    return found.pop() if len(found) == 1 else ""


def _system(row: Mapping[str, Any]) -> str:
    prompt = row.get("prompt")
    if isinstance(prompt, str) or not prompt:
        return ""
    first = cast("Sequence[Mapping[str, Any]]", prompt)[0]
    return str(first["content"]) if first.get("role") == "system" else ""


def _task(id: str, row: Mapping[str, Any], own_system: str) -> Task:
    """Return a row as a task: the last message is the question, the others are its context.

    The environment's own system prompt is left out, since the instruction takes its place.
    """
    prompt = row.get("prompt")
    if isinstance(prompt, str) or not prompt:
        raise ConfigError(
            f"{_FIELD}: row {id} has no chat messages in its prompt; expected a list of them"
        )
    messages = [_message(m, id) for m in cast("Sequence[Mapping[str, Any]]", prompt)]
    if messages[-1][0] != "user":
        raise ConfigError(
            f"{_FIELD}: the prompt of row {id} ends with a message of the {messages[-1][0]}; "
            "expected the user's"
        )
    if own_system and messages[0] == ("system", own_system):
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
