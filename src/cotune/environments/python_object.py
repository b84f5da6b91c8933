"""Environments of a class or function of the user's own."""

from typing import Any, Literal, cast

from pydantic import Field

from cotune.environments.environment_kind import EnvironmentKind, Tasks
from cotune.errors import ConfigError
from cotune.protocols import Environment
from cotune.utils.importing import import_object
from cotune.utils.text import line_of, named
from cotune.utils.validation import Model

_FIELD = "environment.object"
_MEMBERS = (
    "stop", "required", "tools", "initial_instruction", "tasks", "messages", "respond", "score",
)  # fmt: skip


class PythonOptions(Model):
    """An environment class of your own."""

    kind: Literal["python"] = "python"
    object: str
    """`package.module:name` or `file.py:name` of a class or function that makes the environment."""
    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Its keyword arguments; `tasks` is added if the run file has a `dataset`."""


def python_environment(options: PythonOptions, tasks: Tasks | None) -> Environment:
    """Call the object with its arguments; ConfigError if it fails or makes no environment."""
    factory = import_object(options.object, _FIELD)
    arguments = options.args if tasks is None else {**options.args, "tasks": tasks}
    try:
        environment = factory(**arguments)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise ConfigError(
            f"{_FIELD}: {options.object} raised {named(error)}{line_of(error)}; fix it, or change "
            "environment.args"
        ) from error
    missing = [name for name in _MEMBERS if not hasattr(environment, name)]
    if missing:
        raise ConfigError(
            f"{_FIELD}: {options.object} gives {type(environment).__name__}, which has no "
            f"{', '.join(missing)}; derive it from cotune.TaskEnvironment, or add them"
        )
    return cast(Environment, environment)


KIND = EnvironmentKind(
    options=PythonOptions, build=python_environment, dataset="optional", runs_user_code=True
)
