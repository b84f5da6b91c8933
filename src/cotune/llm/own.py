"""An LLM that the user brings: any object with `complete(prompt)`."""

import re
from dataclasses import dataclass
from typing import Literal, cast

from cotune.errors import ConfigError
from cotune.protocols import LLM
from cotune.types import Section
from cotune.utils.importing import import_object
from cotune.utils.text import named

_OBJECT = re.compile(r"[^\s:]+:[A-Za-z_][\w.]*")


@dataclass(frozen=True, kw_only=True)
class OwnLLMOptions(Section):
    """An object of your own with `complete(prompt)`; `llm: my_llm.py:MyLLM` is short for it.

    Attributes:
        kind: "python".
        object: `package.module:name` or `file.py:name` of an object, or of a class without required
            arguments. `complete` returns a text or a `cotune.Completion`, and raises `cotune.LLMError`
            if there is no reply.
        optional: whether a run continues if all proposals of two phases in a row fail.
    """

    kind: Literal["python"] = "python"
    object: str
    optional: bool = False

    def __post_init__(self) -> None:
        if not _OBJECT.fullmatch(self.object):
            raise ValueError(
                "object is not of the form package.module:name or file.py:name (the value is not shown: "
                "it may be a key)"
            )

    def describe(self) -> str:
        """Return the name of the object."""
        return self.object


def own_llm(options: OwnLLMOptions) -> LLM:
    """Return the object, made from its class if it is one.

    Raises:
        ConfigError: it cannot be imported or made, or has no `complete`.
    """
    llm = import_llm(options)
    if not isinstance(llm, type):
        return cast("LLM", llm)
    try:
        return cast("LLM", llm())
    except Exception as error:  # its own code may raise anything
        raise ConfigError(
            f"llm.object: {options.object}() raised {named(error)}; expected "
            "a class without required arguments, or an object"
        ) from error


def import_llm(options: OwnLLMOptions) -> object:
    """Return the object or the class, which has `complete`; raise the errors of `own_llm`."""
    llm = import_object(options.object, "llm.object")
    if not callable(getattr(llm, "complete", None)):
        raise ConfigError(
            f"llm.object: {options.object} is of {type(llm).__name__}, which has no "
            "complete(prompt); expected an object or a class that has it"
        )
    return llm
