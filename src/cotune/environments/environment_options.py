"""The parts of a run file that say what is trained on: data, environment, rewards, instruction."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, cast

from pydantic import Field, model_validator

from cotune.environments.base import PromptFormat
from cotune.utils.validation import Model


class InstructionConfig(Model):
    """The initial instruction and where it stands; what is null is as the environment has it."""

    text: str | None = None
    """What the policy is told at first; null: the environment's."""
    role: Literal["user", "system"] | None = None
    """The message that holds it."""
    placement: Literal["before", "after"] | None = None
    """Before or after the question, in the user's message."""
    system: Literal["keep", "replace"] | None = None
    """What becomes of a system prompt that the data has."""

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) or value is None else value

    @property
    def places(self) -> dict[str, str]:
        """The fields of a `PromptFormat` that are given."""
        fields = ("role", "placement", "system")
        return {name: value for name in fields if (value := getattr(self, name)) is not None}

    def format(self, own: PromptFormat) -> PromptFormat:
        """An environment's own format with what is given here in place."""
        return replace(own, **self.places)  # pyright: ignore[reportArgumentType]


class SingleTurnOptions(Model):
    """One turn a question, scored by `rewards`; the questions are those of `dataset`."""

    kind: Literal["single_turn"] = "single_turn"
    initial_instruction: str = ""
    """Where the run file's `instruction` has no text."""


class ToolConfig(Model):
    """A tool and its time-out."""

    function: str
    """`package.module:name` or `file.py:name` of a typed function with a docstring."""
    seconds: float | None = Field(default=None, gt=0)
    """After which a call of it counts as failed; null: the environment's."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"function": value} if isinstance(value, str) else value


class ToolsOptions(Model):
    """Your own functions as tools, called through the policy's chat template."""

    kind: Literal["tools"] = "tools"
    tools: tuple[ToolConfig, ...] = Field(min_length=1)
    seconds: float = Field(default=30.0, gt=0)
    """After which a call counts as failed."""
    concurrency: int = Field(default=32, ge=1)
    """Calls that run at the same time, per process."""
    initial_instruction: str = "Answer the question. Call the tools where they help."
    """Where the run file's `instruction` has no text."""
    description: str | None = None
    """What the LLM that proposes is told of the environment; null: the tools, "": nothing."""


class TrlOptions(Model):
    """An environment written for TRL's `environment_factory`."""

    kind: Literal["trl"] = "trl"
    factory: str
    """`package.module:name` or `file.py:name` of a class or function that makes one environment."""
    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Keyword arguments of the factory."""
    seconds: float = Field(default=30.0, gt=0)
    """After which a call counts as failed."""
    concurrency: int = Field(default=32, ge=1)
    """Calls that run at the same time, per process."""
    initial_instruction: str = "Complete the task. Call the tools where they help."
    """Where the run file's `instruction` has no text."""
    description: str | None = None
    """What the LLM that proposes is told of the environment; null: the tools, "": nothing."""


class VerifiersOptions(Model):
    """An environment of the `verifiers` library, with its own data, tools and rubric."""

    kind: Literal["verifiers"] = "verifiers"
    environment: str
    """An installed environment's id, or `package.module:name` of a function that returns one."""
    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Keyword arguments of its loader."""
    validation: int = Field(default=100, ge=1)
    """Questions of its evaluation data (or held out of its training data) for validation."""
    test: int = Field(default=200, ge=1)
    """Questions for the final evaluation, likewise."""
    initial_instruction: str | None = None
    """null: the environment's own system prompt."""


class PythonOptions(Model):
    """An environment class of your own, or one that an installed package registers."""

    kind: Literal["python"] = "python"
    object: str
    """`package.module:name` or `file.py:name`, or a kind that a package registers in the
    entry-point group `cotune.environments`."""
    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Its keyword arguments; where the run file has a `dataset`, `tasks` is one more."""


OwnEnvironment = SingleTurnOptions | ToolsOptions | TrlOptions | VerifiersOptions | PythonOptions
WITH_DATASET = ("single_turn", "tools", "trl", "python")
"""Kinds of environments that take their questions from `dataset`."""


def environment_section(raw: object, known: frozenset[str], registered: frozenset[str]) -> object:
    """The `environment` section with its shorthands written out.

    A text is a kind or, with a colon, an object; a kind that only a package knows becomes
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
