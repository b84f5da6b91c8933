"""The suite file: the methods to compare, their run file, the seeds and the rollout budget."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from cotune.config.overrides import merge, with_overrides
from cotune.config.run_file import read_fields
from cotune.errors import ConfigError
from cotune.methods.registry import kinds, method_of
from cotune.utils.text import shorten, slug
from cotune.utils.validation import Model, TextOrFields, describe

Group = Literal["trained", "prompt", "staged", "ours"]
"""The heading of a method in tables; see `results.GROUPS`."""


@dataclass(frozen=True)
class Method:
    """A method that a suite can name: one run, or several in sequence, its stages.

    Attributes:
        label: its name in tables.
        stages: by the name of its folder, the `strategy.kind` of each run; see `is_search`. Each starts from the best
            policy and the best instruction of those before it.
    """

    label: str
    group: Group
    stages: Mapping[str, str]


def is_search(stage: str) -> bool:
    """Return whether a stage searches for an instruction while the policy is frozen."""
    return stage.startswith("prompt")


def _staged(label: str, *names: str) -> Method:
    stages = {name: "inspo" if is_search(name) else "static" for name in names}
    return Method(label, "staged", stages)


METHODS: Mapping[str, Method] = {
    "grpo": Method("GRPO", "trained", {"train": "static"}),
    "gepa": Method("GEPA", "prompt", {"prompt": "gepa"}),
    "prompt-before-rl": _staged("Prompt before RL", "prompt", "train"),
    "prompt-after-rl": _staged("Prompt after RL", "train", "prompt"),
    "w-p-w": _staged("w -> p -> w", "first", "prompt", "train"),
    "p-w-p": _staged("p -> w -> p", "prompt", "train", "prompt-2"),
    "p-w-p-w": _staged("p -> w -> p -> w", "prompt", "first", "prompt-2", "train"),
}
"""Methods besides those of the registry, which are named by their `strategy.kind`."""


def method_names() -> list[str]:
    """Return the names of all methods that a suite can name."""
    strategies = [kind for kind in kinds() if kind != "static"]  # it is grpo here
    return list(dict.fromkeys([*METHODS, *strategies]))


def method_named(name: str) -> Method:
    """Return a method by its name in a suite file. Raises ConfigError: no such method; the message names all."""
    if name in METHODS:
        return METHODS[name]
    if name in method_names():
        return Method(method_of(name).label, "ours", {"train": name})
    raise ConfigError(
        f"methods: {name!r} is unknown; expected one of {', '.join(method_names())}. A row with other options is "
        "{method: …, name: …, set: {strategy.…: …}}"
    )


def expand(changes: Any) -> Any:
    """Return nested fields for dotted paths: {"training.steps": 1} is {"training": {"steps": 1}}.

    Anything but a mapping, and keys other than strings, are left to be rejected by validation.
    """
    if not isinstance(changes, Mapping):
        return changes
    nested: dict[str, Any] = {}
    for key, value in cast("Mapping[Any, Any]", changes).items():
        first, *path = key.split(".") if isinstance(key, str) else [key]
        section = expand(value)
        for name in reversed(path):
            section = {name: section}
        nested = merge(nested, {first: section})
    return nested


def _keeps_sections(changes: dict[str, Any]) -> dict[str, Any]:
    """Refuse a value for a whole section: it would drop the base's fields, and those set later would hide that."""
    for name in ("strategy", "training"):
        value = changes.get(name, {})
        if not isinstance(value, dict):
            raise ValueError(f"{name}: expected fields below it; got {shorten(value, guess=True)}")
    return changes


Changes = Annotated[dict[str, Any], BeforeValidator(expand), AfterValidator(_keeps_sections)]
"""Fields of a run file, nested or by dotted paths."""


_COMPUTE = re.compile(r"\d+(\.\d+)?x")


class MethodEntry(TextOrFields):
    """One row of the table."""

    method: str
    """A method: a `strategy.kind`, `grpo`, `gepa` or a staged one; an unknown name lists them all."""
    name: str = ""
    """The row's label in tables; the method's own by default."""
    set: Changes = Field(default_factory=dict[str, Any])
    """Fields that replace the suite's in every stage of the method, `strategy.…` among them."""
    compute: str = "1x"
    """The rollouts it may use, as a multiple of the budget: "2x"."""
    share: float = Field(default=0.25, gt=0, lt=1)
    """The share of the budget for the prompt stages of a staged method."""

    @model_validator(mode="after")
    def _fields_fit(self) -> "MethodEntry":
        if not _COMPUTE.fullmatch(self.compute):
            raise ValueError(f'compute is {self.compute!r}; expected "1x" or "2x"')
        if not self.key:
            raise ValueError(f"name is {self.name!r}; expected one with a letter a-z or a digit")
        return self

    @property
    def key(self) -> str:
        """The row's name in folders and in other rows."""
        return slug(self.name or self.method)


class SuiteConfig(Model):
    """A suite file."""

    name: str
    """The suite's name on the console and in the report."""
    caption: str = ""
    """A text under the table that says what the result is evidence for."""
    output: Path
    """The folder of all its runs."""
    base: Path | dict[str, Any]
    """The run file that all methods share, relative to this file; or its fields."""
    set: Changes = Field(default_factory=dict[str, Any])
    """Fields that replace the base's, for all methods."""
    by_strategy: dict[str, Changes] = Field(default_factory=dict[str, dict[str, Any]])
    """By kind of strategy, fields of the stages that it trains: its tuned learning rate, the paper's
    numbers scaled down."""
    prompt_stage: Changes = Field(default_factory=dict[str, Any])
    """Fields of the stage of a staged method in which INSPO searches for an instruction."""
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    """Every method is run once with each."""
    seed_fields: tuple[str, ...] = ()
    """Other fields that are set to the seed: environment.seed for other questions with each seed."""
    budget: int = Field(ge=1)
    """Policy rollouts (training, verification and evolution) of a row of compute class 1x."""
    baseline: str
    """The row that gains are measured against."""
    focus: str | None = None
    """The score is over questions whose stratum begins with this; null: over all."""
    quadrant_samples: int = Field(default=0, ge=0)
    """Sampled rollouts per test question for which the initial and the trained weights of each trained
    row are scored, under the initial and the best instruction; 0: only greedy scores."""
    at_once: int = Field(default=2, ge=1)
    """Processes at a time. Set `threads` in the base to the cores that each may use."""
    methods: tuple[MethodEntry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_and_seeds_fit(self) -> "SuiteConfig":
        strategies = kinds()
        for kind in self.by_strategy:
            if kind not in strategies:
                raise ValueError(
                    f"by_strategy: {kind!r} is not a strategy.kind; expected one of {', '.join(strategies)}. A row's "
                    "own fields are in its `set`"
                )
        twice = [key for key, n in Counter(entry.key for entry in self.methods).items() if n > 1]
        if twice:
            raise ValueError(f"methods: {twice[0]} is listed twice; give one of them another name")
        keys = [entry.key for entry in self.methods]
        if slug(self.baseline) not in keys:
            raise ValueError(
                f"baseline is {self.baseline!r}; expected one of methods: {', '.join(keys)}"
            )
        if len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"seeds is {list(self.seeds)}; expected different numbers from 0")
        return self


def load_suite(
    path: str | Path, assignments: Sequence[str] = ()
) -> tuple[SuiteConfig, dict[str, Any]]:
    """Read a suite file, and the run file it is based on as plain data; `assignments` replace fields: `seeds=[0]`.

    Raises ConfigError: one line with the file, the field, what it holds and what was expected.
    """
    path = Path(path)
    raw = with_overrides(read_fields(path, "a suite file", "name: and methods:"), assignments)
    if "strategy" in raw and "methods" not in raw:
        raise ConfigError(
            f"{path} is a run file, as it has a strategy and no methods; expected a suite file; train the "
            f"run with cotune train {path}"
        )
    source = f"{path} with --set" if assignments else str(path)
    named_base = raw.get("base", path)
    if not isinstance(named_base, str | Path | dict) or named_base == "":
        raise ConfigError(f"{source}: base: expected a path or fields; got {shorten(named_base)}")
    try:
        suite = SuiteConfig.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{source}: {describe(error, SuiteConfig)}") from None
    if isinstance(suite.base, Path):
        base = path.parent / suite.base
        return suite, read_fields(base, "a run file", "output: and strategy:")
    return suite, suite.base
