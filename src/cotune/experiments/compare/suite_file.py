"""The suite file: which methods are compared, on what, over which seeds, at how many rollouts."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from cotune.config.overrides import with_overrides
from cotune.errors import ConfigError
from cotune.experiments.compare.changes import expanded
from cotune.llm.client import OpenAIOptions
from cotune.utils.validation import Model, describe

_COMPUTE = re.compile(r"none|\d+(\.\d+)?x")
_SLUG = re.compile(r"[^a-z0-9.+]+")

Changes = Annotated[dict[str, Any], BeforeValidator(expanded)]
"""Fields of a run file, nested or by their dotted paths."""


class MethodEntry(Model):
    """One row of the table."""

    method: str
    """A name that `cotune compare --methods` lists."""
    name: str = ""
    """What tables call it; by default the method's own label."""
    set: Changes = Field(default_factory=dict[str, Any])
    """Fields of the run file in place of the suite's, in every stage of the method."""
    compute: str | None = None
    """What it may pay, as a multiple of the budget ("1x", "2x"), or "none"; null: the method's."""
    share: float = Field(default=0.25, gt=0, lt=1)
    """The part of the budget that the prompt stage of a staged method spends."""
    optimizer: Literal["inspo", "gepa"] = "inspo"
    """What searches in the prompt stage of a staged method, with the policy frozen."""
    instruction_from: str = "inspo"
    """carried: the row whose best instruction is evaluated."""
    policy_from: str = "search-r1"
    """carried: the row whose policy is evaluated under it; or a Hugging Face name or folder."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"method": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _compute_is_a_multiple(self) -> "MethodEntry":
        if self.compute is not None and not _COMPUTE.fullmatch(self.compute):
            raise ValueError(f'compute is {self.compute!r}; expected "none", "1x" or "2x"')
        if not self.key:
            raise ValueError(f"name is {self.name!r}; expected one with a letter a-z or a digit")
        return self

    @property
    def key(self) -> str:
        """What folders and other rows call it."""
        return slug(self.name or self.method)


class EndpointsConfig(Model):
    """Who writes hints in P²O's Self-Ref and Teacher-Ref."""

    self_ref: OpenAIOptions | None = None
    """A server of the initial policy's own weights, frozen."""
    teacher_ref: OpenAIOptions | None = None
    """A stronger model."""


class SuiteConfig(Model):
    """A suite file."""

    name: str
    """What the console and the report call it."""
    caption: str = ""
    """What the result is evidence of, under the table."""
    output: Path
    """The folder of all its runs."""
    base: Path | dict[str, Any]
    """The run file that all methods share, beside this file; or its fields."""
    set: Changes = Field(default_factory=dict[str, Any])
    """Fields in place of the base's, for all methods."""
    by_strategy: dict[str, Changes] = Field(default_factory=dict[str, dict[str, Any]])
    """Fields of the stages that are trained by a kind of strategy, for each such kind: a learning
    rate that was tuned for it, the paper's numbers scaled down."""
    prompt_stage: Changes = Field(default_factory=dict[str, Any])
    """Fields of the stage of a staged method that searches for an instruction by INSPO."""
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    """Every method is run once for each."""
    seed_fields: tuple[str, ...] = ()
    """Fields that are given the seed as well: environment.seed for other questions each time."""
    budget: int = Field(ge=1)
    """Policy rollouts (training, verification, evolution) of a method of compute class 1x."""
    tolerance: float = Field(default=0.05, ge=0, lt=1)
    """How far off its class a method may be, as a share."""
    unequal: Literal["refuse", "flag"] = "refuse"
    """What becomes of a method that paid for another number: left out of the table with its reason,
    or shown and flagged."""
    baseline: str
    """The row that gains are over."""
    focus: str | None = None
    """How the strata begin whose questions the score is over; null: all."""
    at_once: int = Field(default=2, ge=1)
    """Processes at a time. Set `threads` in the base to the cores of each."""
    endpoints: EndpointsConfig = EndpointsConfig()
    methods: tuple[MethodEntry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _rows_are_told_apart(self) -> "SuiteConfig":
        twice = [key for key, n in Counter(entry.key for entry in self.methods).items() if n > 1]
        if twice:
            raise ValueError(f"methods: {twice[0]} stands twice; give one of them another name")
        keys = [entry.key for entry in self.methods]
        if slug(self.baseline) not in keys:
            raise ValueError(
                f"baseline is {self.baseline!r}; expected one of methods: {', '.join(keys)}"
            )
        if len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"seeds is {list(self.seeds)}; expected numbers from 0, each once")
        return self


def slug(name: str) -> str:
    """A folder's name for a row's."""
    return _SLUG.sub("-", name.lower().replace("²", "2")).strip("-.")


def load_suite(
    path: str | Path, assignments: Sequence[str] = ()
) -> tuple[SuiteConfig, dict[str, Any]]:
    """Reads a suite file and the run file it is based on, as plain data.

    Args:
        path: the suite file.
        assignments: fields in place of its own, each as `seeds=[0]`; see `cotune.config.overrides`.

    Raises:
        ConfigError: one line with the file, the field, what came and what was expected.
    """
    path = Path(path)
    raw = with_overrides(_mapping(path), assignments)
    try:
        suite = SuiteConfig.model_validate(raw)
    except ValidationError as error:
        source = f"{path} with --set" if assignments else str(path)
        raise ConfigError(f"{source}: {describe(error, SuiteConfig)}") from None
    if isinstance(suite.base, Path):
        return suite, _mapping(path.parent / suite.base)
    return suite, suite.base


def _mapping(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}; expected a YAML file") from error
    except (UnicodeDecodeError, yaml.YAMLError):
        raise ConfigError(f"{path}: not YAML; expected fields such as name: and methods:") from None
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{path}: holds no fields; expected some such as name: and methods:")
    return dict(cast("Mapping[str, Any]", raw))
