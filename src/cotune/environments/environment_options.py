"""The `instruction` section, and the environments that a user brings: their options and building."""

import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, model_validator

from cotune.data.dataset import DatasetConfig, read_dataset
from cotune.environments.base import PromptFormat, SingleTurnEnvironment
from cotune.errors import ConfigError
from cotune.protocols import Environment
from cotune.utils.importing import ENVIRONMENTS, import_object, load_registered
from cotune.utils.text import named
from cotune.utils.validation import Model, TextOrFields


class InstructionConfig(Model):
    """The initial instruction and its position; null fields are the environment's own."""

    text: str | None = None
    """The initial instruction; null: the environment's."""
    role: Literal["user", "system"] | None = None
    """The message that holds it."""
    placement: Literal["before", "after"] | None = None
    """Before or after the question, in the user's message."""
    system: Literal["keep", "replace"] | None = None
    """Keep the data's system prompt, or replace it with the instruction."""

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) or value is None else value

    @model_validator(mode="after")
    def _has_a_place(self) -> "InstructionConfig":
        if self.role == "system" and self.placement is not None:
            raise ValueError(
                f"placement is {self.placement!r}, which is for the user's message, but role is 'system'; "
                "remove placement"
            )
        return self

    @property
    def places(self) -> dict[str, str]:
        """Return the fields of a `PromptFormat` that are given."""
        fields = ("role", "placement", "system")
        return {name: value for name in fields if (value := getattr(self, name)) is not None}

    def format(self, own: PromptFormat) -> PromptFormat:
        """Return an environment's own format with the given fields replaced."""
        return replace(own, **self.places)  # pyright: ignore[reportArgumentType]


class SingleTurnOptions(Model):
    """Questions of `dataset`, answered in one turn and scored by `rewards`."""

    kind: Literal["single_turn"] = "single_turn"


class MathOptions(Model):
    r"""Problems of `dataset`, answered in one turn in \boxed{…} and compared by math-verify."""

    kind: Literal["math"] = "math"


class ToolConfig(TextOrFields):
    """A tool and its timeout."""

    function: str
    """`package.module:name` or `file.py:name` of a typed function with a docstring."""
    seconds: float | None = Field(default=None, gt=0)
    """Timeout of a call, in seconds; null: the environment's."""


class ToolsOptions(Model):
    """Your own functions as tools, called through the policy's chat template."""

    kind: Literal["tools"] = "tools"
    tools: tuple[ToolConfig, ...] = Field(min_length=1)
    seconds: float = Field(default=30.0, gt=0)
    """Timeout of a call, in seconds."""


class TrlOptions(Model):
    """An environment written for TRL's `environment_factory`, with a `dataset` or without one."""

    kind: Literal["trl"] = "trl"
    factory: str
    """`package.module:name` or `file.py:name` of a class or function that makes one environment."""
    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Keyword arguments of the factory."""
    validation: int = Field(default=100, ge=1)
    """Number of episodes for choosing the best policy, without a `dataset`."""
    test: int = Field(default=200, ge=1)
    """Number of episodes for the final evaluation, without a `dataset`."""
    seconds: float = Field(default=30.0, gt=0)
    """Timeout of a call, in seconds."""
    concurrency: int = Field(default=32, ge=1)
    """Calls of tools that run at the same time, per process; 1 seeds each, for tools that draw from the
    generators of `random`, numpy or torch."""


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


class PythonOptions(Model):
    """An environment class of your own, or one that an installed package registers."""

    kind: Literal["python"] = "python"
    object: str
    """`package.module:name` or `file.py:name`, or a kind that a package registers in the
    entry-point group `cotune.environments`."""
    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Its keyword arguments; `tasks` is added if the run file has a `dataset`."""


OwnEnvironment = (
    SingleTurnOptions | MathOptions | ToolsOptions | TrlOptions | VerifiersOptions | PythonOptions
)
NEEDS_DATASET = ("single_turn", "math", "tools")
"""Kinds of environments whose questions are those of `dataset`."""
WITH_DATASET = (*NEEDS_DATASET, "trl", "python")
"""Kinds of environments that can take their questions from `dataset`."""


def environment_section(raw: object, known: frozenset[str], registered: frozenset[str]) -> object:
    """Expand the shorthands of the `environment` section.

    A text is a kind or, with a colon, an object. A kind that a package registers becomes
    `kind: python` with the other fields as its arguments.
    """
    if isinstance(raw, str):
        raw = {"kind": "python", "object": raw} if ":" in raw else {"kind": raw}
    if not isinstance(raw, Mapping):
        return raw
    section = dict(cast("Mapping[str, Any]", raw))
    kind = section.get("kind")
    if isinstance(kind, str) and kind not in known and kind in registered:
        del section["kind"]
        return {"kind": "python", "object": kind, "args": section}
    return section


_MEMBERS = (
    "stop", "required", "tools", "initial_instruction", "tasks", "messages", "respond", "score",
)  # fmt: skip


def own_environment(options: OwnEnvironment, dataset: DatasetConfig | None) -> Environment:
    """Build an environment that the user brings.

    Raises:
        ConfigError: the data, function or class cannot be loaded or is not of the expected kind.
    """
    if isinstance(options, PythonOptions):
        return _python(options, dataset)
    if isinstance(options, TrlOptions):
        from cotune.environments.trl_factory import trl_environment

        tasks = None if dataset is None else read_dataset(dataset, repeated=True)
        return trl_environment(options, tasks)
    if isinstance(options, VerifiersOptions):
        from cotune.environments.verifiers import verifiers_environment

        return verifiers_environment(options)
    if dataset is None:
        raise ConfigError(f"dataset: missing; environment.kind {options.kind} brings no questions")
    tasks = read_dataset(dataset)
    if isinstance(options, SingleTurnOptions):
        return SingleTurnEnvironment(tasks, "")
    if isinstance(options, MathOptions):
        from cotune.environments.math import math_environment

        return math_environment(tasks)
    from cotune.environments.tools import tool_environment

    return tool_environment(options, tasks)


def _python(options: PythonOptions, dataset: DatasetConfig | None) -> Environment:
    """Call the object of `package.module:name` or of a registered kind with its arguments."""
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
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        below = traceback.extract_tb(error.__traceback__)[1:]  # empty for arguments that do not fit
        where = f" ({Path(below[-1].filename).name}, line {below[-1].lineno})" if below else ""
        raise ConfigError(
            f"environment.object: {options.object} raised {named(error)}{where}; fix it, or change "
            "environment.args"
        ) from error
    missing = [name for name in _MEMBERS if not hasattr(environment, name)]
    if missing:
        raise ConfigError(
            f"environment.object: {options.object} gives {type(environment).__name__}, which has no "
            f"{', '.join(missing)}; derive it from cotune.TaskEnvironment, or add them"
        )
    return cast(Environment, environment)
