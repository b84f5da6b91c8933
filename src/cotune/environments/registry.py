"""The kinds of environments: cotune's own and those that installed packages add.

A package adds a kind through an entry point in the group `cotune.environments`: its name is the kind, its
value an `EnvironmentKind`. cotune's own are named in the same way, so that a kind is loaded when it is used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_type_hints

from pydantic import Field

from cotune.errors import ConfigError
from cotune.protocols import Environment
from cotune.types import Task
from cotune.utils.importing import import_object, kinds_with, load_kind
from cotune.utils.text import line_of, named
from cotune.utils.validation import Model

Tasks = Mapping[str, Sequence[Task]]
"""Tasks by split."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentKind:
    """A kind of environment, as the run file, its checks, `cotune plan` and `cotune doctor` know it.

    Attributes:
        options: the class of its options, a section `environment` of the run file: a frozen dataclass or model with
            `kind: Literal["…"] = "…"`.
        build: makes the environment of its options and the tasks of `dataset`; None without that section.
        dataset: whether its questions are those of `dataset`.
        runs_user_code: whether it calls code of the user's, which may need the network.
        offline_rules: whether it has rules that write instructions in an LLM's place: a method
            `offline_rules(seed)` of the environment returns them.
        policy: the folder of a small policy made for it, "bundled:KIND" in `policy.path`; None is none.
        extra: cotune's extra that it needs, named after the package; "" is none.
    """

    options: type[Any]
    build: Callable[[Any, Tasks | None], Environment]
    dataset: Literal["required", "optional", "none"] = "none"
    runs_user_code: bool = False
    offline_rules: bool = False
    policy: Path | None = None
    extra: str = ""

    @property
    def kind(self) -> str:
        """Return `environment.kind` as in the run file."""
        return str(get_args(get_type_hints(self.options)["kind"])[0])


GROUP = "cotune.environments"
BUILT_IN: Mapping[str, str] = {
    "ladder": "cotune.worlds.ladder:KIND",
    "search": "cotune.environments.search:KIND",
    "single_turn": "cotune.environments.single_turn:KIND",
    "math": "cotune.environments.single_turn:MATH",
    "tools": "cotune.environments.tools:KIND",
    "trl": "cotune.environments.trl_factory:KIND",
    "verifiers": "cotune.environments.verifiers:KIND",
    "python": "cotune.environments.registry:PYTHON",
}


def kinds() -> list[str]:
    """Return all kinds: cotune's own, then those of installed packages."""
    return kinds_with(GROUP, BUILT_IN)


@cache
def kind_of(kind: str) -> EnvironmentKind:
    """Return the registry entry of an `environment.kind`.

    Raises:
        ConfigError: no such kind, or its package cannot be loaded.
    """
    return load_kind(GROUP, kind, "environment.kind", BUILT_IN)


# ---- an environment of the user's own

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
            f"{_FIELD}: {options.object} raised {named(error)}{line_of(error)}; fix it, or change environment.args"
        ) from error
    missing = [name for name in _MEMBERS if not hasattr(environment, name)]
    if missing:
        raise ConfigError(
            f"{_FIELD}: {options.object} gives {type(environment).__name__}, which has no "
            f"{', '.join(missing)}; derive it from cotune.TaskEnvironment, or add them"
        )
    return cast(Environment, environment)


PYTHON = EnvironmentKind(
    options=PythonOptions, build=python_environment, dataset="optional", runs_user_code=True
)
