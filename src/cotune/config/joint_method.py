"""A method as a Python object: its options, the LLM that proposes, and the initial instruction."""

import os
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from cotune.errors import ConfigError
from cotune.llm.client import OpenAIOptions
from cotune.llm.own import BankOptions
from cotune.methods.method import MethodOptions
from cotune.methods.registry import method_of
from cotune.methods.static import StaticOptions
from cotune.protocols import LLM
from cotune.utils.values import type_of

ProposingLLM: TypeAlias = LLM | OpenAIOptions | BankOptions | str | Path | None
"""The LLM that writes proposals: the name of an OpenAI model, an endpoint's options, a file of texts to
propose (`BankOptions` or its path), or any object with `complete(prompt)`."""


@dataclass(frozen=True, kw_only=True)
class JointMethod:
    """Base class of the methods: what they share beside their own options.

    Raises ConfigError: an option is invalid, or `llm` is not a `ProposingLLM`.
    """

    options_class: ClassVar[type[Any]]

    llm: ProposingLLM = None
    """Writes proposals. None is the environment's offline rules; without any, an error if the method asks an LLM."""
    instruction: str | None = None
    """The initial instruction; None takes the data's or the environment's."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.instruction, str | None):
            raise ConfigError(
                f"{name}: instruction is {type_of(self.instruction)}; expected a text"
            )
        object.__setattr__(self, "llm", _read_llm(name, self.llm))
        method = method_of(self.options.kind)
        if self.llm is not None and not method.needs_llm:
            raise ConfigError(f"{name} asks no LLM; remove llm")

    @cached_property
    def options(self) -> MethodOptions:
        """Return the method's own options, with the types that a run file would give them."""
        # Imported here, so that importing cotune stays light.
        from pydantic import TypeAdapter, ValidationError

        from cotune.utils.validation import describe

        values = {field.name: getattr(self, field.name) for field in fields(self.options_class)}
        try:
            return TypeAdapter[Any](self.options_class).validate_python(values)
        except ValidationError as error:
            problem = describe(error, self.options_class)
            raise ConfigError(f"{type(self).__name__}: {problem}") from None


def _read_llm(name: str, llm: ProposingLLM) -> LLM | OpenAIOptions | BankOptions | None:
    # os.path, unlike Path, takes a text of any length.
    if isinstance(llm, Path) or (isinstance(llm, str) and os.path.isfile(llm)):
        return BankOptions(path=Path(llm))
    if isinstance(llm, str):
        if llm.endswith((".txt", ".md", ".jsonl", ".yaml")):
            raise ConfigError(
                f"{name}: llm is {llm!r}; there is no such file, and no model has such a name"
            )
        if os.path.isdir(llm):
            raise ConfigError(
                f"{name}: llm is the folder {llm!r}; expected a file of texts, or a model of an endpoint: a local one "
                "must be served, and is cotune.OpenAIOptions(model=…, base_url=…)"
            )
        try:
            return OpenAIOptions(model=llm)
        except ValueError as error:
            raise ConfigError(f"{name}: llm: {error}") from None
    is_options = hasattr(llm, "describe")
    has_complete = callable(getattr(llm, "complete", None))
    if llm is None or (not isinstance(llm, type) and (is_options or has_complete)):
        return llm
    # Its type only: its values may hold an API key.
    raise ConfigError(
        f"{name}: llm is {type_of(llm)}; expected a model's name, cotune.OpenAIOptions(model=…), "
        "cotune.BankOptions(path=…) or an object with complete(prompt)"
    )


@dataclass(frozen=True, kw_only=True)
class Static(JointMethod, StaticOptions):
    """Train with GRPO under a static instruction: the baseline for every method. It asks no LLM."""

    options_class = StaticOptions


@dataclass(frozen=True, kw_only=True)
class OtherMethod(JointMethod):
    """A method that an installed package adds, by its options."""

    strategy: MethodOptions
    """Their `kind` names the method in the entry points `cotune.methods`."""

    @cached_property
    def options(self) -> MethodOptions:
        return self.strategy
