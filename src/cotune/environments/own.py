"""Environments that a user brings: built from a run file's section and its data."""

from typing import cast

from cotune.data.dataset import DatasetConfig, read_dataset
from cotune.environments.base import SingleTurnEnvironment
from cotune.environments.environment_options import (
    OwnEnvironment,
    PythonOptions,
    SingleTurnOptions,
    ToolsOptions,
    TrlOptions,
)
from cotune.errors import ConfigError
from cotune.protocols import Environment
from cotune.utils.importing import ENVIRONMENTS, import_object, load_registered

_MEMBERS = (
    "stop",
    "required",
    "tools",
    "initial_instruction",
    "tasks",
    "messages",
    "respond",
    "score",
)


def own_environment(options: OwnEnvironment, dataset: DatasetConfig | None) -> Environment:
    """An environment of the user's.

    Raises:
        ConfigError: data, function or class that cannot be had, or is not what is expected.
    """
    if isinstance(options, PythonOptions):
        return _python(options, dataset)
    if isinstance(options, SingleTurnOptions | ToolsOptions | TrlOptions):
        if dataset is None:
            raise ConfigError(
                f"dataset: missing; environment.kind {options.kind} brings no questions"
            )
        tasks = read_dataset(dataset)
        if isinstance(options, SingleTurnOptions):
            return SingleTurnEnvironment(tasks, options.initial_instruction)
        if isinstance(options, ToolsOptions):
            from cotune.environments.tools import tool_environment

            return tool_environment(options, tasks)
        from cotune.environments.trl_factory import trl_environment

        return trl_environment(options, tasks)
    from cotune.environments.verifiers import verifiers_environment

    return verifiers_environment(options)


def _python(options: PythonOptions, dataset: DatasetConfig | None) -> Environment:
    """An object of `package.module:name` or of a registered kind, called with its arguments."""
    if ":" in options.object:
        factory = import_object(options.object, "environment.object")
    else:
        factory = load_registered(ENVIRONMENTS, options.object, "environment.kind")
    arguments = dict(options.args)
    if dataset is not None:
        arguments["tasks"] = read_dataset(dataset)
    if not callable(factory):
        raise ConfigError(
            f"environment.object: {options.object} is {type(factory).__name__}; expected a class or "
            "function that makes an environment"
        )
    try:
        environment = factory(**arguments)
    except TypeError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"environment.args: {options.object} does not take {sorted(arguments)} ({reason}); "
            "change environment.args, or the class"
        ) from error
    missing = [name for name in _MEMBERS if not hasattr(environment, name)]
    if missing:
        raise ConfigError(
            f"environment.object: {options.object} gives {type(environment).__name__}, which has no "
            f"{', '.join(missing)}; derive it from cotune.TaskEnvironment, or add them"
        )
    return cast(Environment, environment)
