"""What proposes in place of an endpoint: the user's own object with `complete(prompt)`, or a bank of texts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from cotune.errors import BudgetError, ConfigError
from cotune.methods.inspo.proposers import candidates_asked
from cotune.protocols import LLM, State
from cotune.types import Completion, Section
from cotune.utils.importing import import_object
from cotune.utils.text import named

_OBJECT = re.compile(r"[^\s:]+:[A-Za-z_][\w.]*")
_RULE = re.compile(r"^---+[ \t]*$", re.MULTILINE)
_BLANK = re.compile(r"\n[ \t]*\n")
# What would end an entry before its end in the form of a reply.
_ENDS = re.compile(r"<\s*/?\s*ins_\d+\s*>|```", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class OwnLLMOptions(Section):
    """An object of your own with `complete(prompt)`; `llm: my_llm.py:MyLLM` is short for it.

    Attributes:
        kind: "python".
        object: `package.module:name` or `file.py:name` of an object, or of a class without required arguments.
            `complete` returns a text or a `cotune.Completion`, and raises `cotune.LLMError` if there is no reply.
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
    """Return the object, made from its class if it is one; ConfigError if it cannot be, or has no `complete`."""
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


# ---- a bank of texts


@dataclass(frozen=True, kw_only=True)
class BankOptions(Section):
    """Texts of your own in place of an LLM's proposals, each proposed once.

    Attributes:
        kind: "bank".
        path: a text file with one instruction after another (hints for strategy.kind p2o). Lines of
            `---` separate them; in a file without such a line, blank lines do.
    """

    kind: Literal["bank"] = "bank"
    path: Path

    def __post_init__(self) -> None:
        # In Python a text will do.
        object.__setattr__(self, "path", Path(self.path))

    def describe(self) -> str:
        """Return what proposes, and its file."""
        return f"a bank of written texts ({self.path.name}), not an LLM"


class BankLLM:
    """Answer proposers' prompts with the entries of a bank, as many as they ask for.

    An entry is proposed once. The state is the texts that were proposed, so entries may be
    added to the file before a resume. When none is left, BudgetError says so.

    Raises:
        ConfigError: the file cannot be read, holds no entry, or an entry that no reply can hold.
    """

    origin = "bank"

    def __init__(self, options: BankOptions) -> None:
        self.identity = options.describe()
        self._path = options.path
        self._texts = read_bank(options.path, "llm.path")
        self._used = set[str]()

    def complete(self, prompt: str) -> Completion:
        """Return the next entries in the form that a prompt of INSPO's, or else of gepa's, asks for."""
        if (count := candidates_asked(prompt)) is not None:
            texts = enumerate(self._take(count), 1)
            return Completion("\n\n".join(f"<ins_{i}>\n{text}\n</ins_{i}>" for i, text in texts))
        return Completion(f"```\n{self._take(1)[0]}\n```")

    def _take(self, count: int) -> Sequence[str]:
        """Return the next entries, at most `count`; raise BudgetError if there is none."""
        unused = [text for text in self._texts if text not in self._used][:count]
        if not unused:
            raise BudgetError(
                f"the bank {self._path.name} is exhausted: its {len(self._texts)} texts have all been proposed"
            )
        self._used |= set(unused)
        return unused

    def state_dict(self) -> State:
        return {"used": sorted(self._used)}

    def load_state_dict(self, state: State) -> None:
        self._used = set(state["used"])


def read_bank(path: Path, field: str) -> list[str]:
    """Return the entries of a bank's file, each once; errors name `field`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"{field}: cannot read {path}: {reason}; name a text file") from error
    separator = _RULE if _RULE.search(text) else _BLANK
    entries = list(dict.fromkeys(part.strip() for part in separator.split(text) if part.strip()))
    if not entries:
        raise ConfigError(
            f"{field}: {path} holds no text; expected one or more, separated by blank lines or lines of ---"
        )
    for number, entry in enumerate(entries, 1):
        if mark := _ENDS.search(entry):
            raise ConfigError(
                f"{field}: text {number} of {path} contains {mark.group()}, which a proposal cannot; remove it"
            )
    return entries
