"""The parts of a run file that say what is trained on: data, environment, rewards, instruction."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from cotune.environments.base import PromptFormat


class Model(BaseModel):
    """Frozen, without unknown fields; a field's docstring is its description."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


Column = Literal["question", "answers", "solution", "stratum", "id"]


class DatasetConfig(Model):
    """Questions of your own, from a file or from the Hugging Face hub."""

    path: Path | None = None
    """A JSONL, JSON, CSV or Parquet file, or a folder of Parquet files."""
    name: str | None = None
    """A data set of the Hugging Face hub, or of its cache."""
    subset: str | None = None
    """The hub data set's configuration."""
    split: str = "train"
    """The hub data set's split that is trained on; a file is one split."""
    validation: int | Path = Field(default=100)
    """Questions held out of the training data for choosing the best policy, at most a tenth of
    them, by a hash of their text; or another file; or, of a hub data set, another split."""
    test: int | Path = Field(default=200)
    """Questions held out for the final evaluation, at most a fifth; or a file or split."""
    columns: dict[Column, str | None] = Field(default_factory=dict[Column, str | None])
    """Which columns hold what; without an entry the column of that name is read (for questions also
    "prompt" and "problem", for answers also "answer", "golden_answers" and "ground_truth"), with
    null none. `reward_model.ground_truth` is a field below a column. Only the question is needed: a
    text, or chat messages that end with the user's."""
    limit: int | None = Field(default=None, ge=1)
    """Only the first questions that are left to train on; what is held out stays. null: all."""

    @field_validator("columns", mode="before")
    @classmethod
    def _answer_is_answers(cls, value: Any) -> Any:
        """`answer` is a name for `answers`."""
        if not isinstance(value, Mapping) or "answer" not in value or "answers" in value:
            return value
        named = cast("Mapping[str, Any]", value)
        return {("answers" if name == "answer" else name): c for name, c in named.items()}

    @model_validator(mode="before")
    @classmethod
    def _no_benchmark(cls, value: Any) -> Any:
        """Benchmarks are what papers test on: their loaders read those splits alone."""
        if isinstance(value, Mapping) and "benchmark" in value:
            raise ValueError(
                "dataset.benchmark: benchmarks are tested on, never trained on; expected path or name "
                "of the questions to train on, and cotune evaluate RUN --benchmark NAME[=PATH] after"
            )
        return cast("object", value)

    @model_validator(mode="after")
    def _one_source(self) -> "DatasetConfig":
        if (self.path is None) == (self.name is None):
            given = "both path and name" if self.path else "neither path nor name"
            raise ValueError(f"dataset: has {given}; expected one of them")
        for name in ("validation", "test"):
            if isinstance(value := getattr(self, name), int) and value < 1:
                raise ValueError(f"dataset.{name} is {value}; expected 1 or more")
        if "question" in self.columns and self.columns["question"] is None:
            raise ValueError("dataset.columns.question is null; expected the questions' column")
        return self


class RewardConfig(Model):
    """A reward function and its weight."""

    function: str
    """`package.module:name` or `file.py:name` of a function as TRL takes it, or one of ours:
    exact_match, f1_squad, f1_hotpot, boxed."""
    weight: float = 1.0
    """Of its values in the sum of all."""
    messages: bool | None = None
    """Whether it gets prompts and completions as chat messages (true) or as texts (false); null: as
    the data has its questions, and messages where there are tools."""
    """Of its value in the sum."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"function": value} if isinstance(value, str) else value


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
