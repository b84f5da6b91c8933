"""A bank: texts that the user wrote, proposed one after another in place of an LLM's."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from cotune.errors import BudgetError, ConfigError, LLMError
from cotune.methods.inspo.proposers import candidates_asked
from cotune.methods.instruction_evolution import ABOUT_AN_AGENT
from cotune.methods.method import Method
from cotune.protocols import State
from cotune.types import Completion

_RULE = re.compile(r"^---+[ \t]*$", re.MULTILINE)
_BLANK = re.compile(r"\n[ \t]*\n")
# What would end an entry before its end in the form of a reply.
_ENDS = re.compile(r"<\s*/?\s*ins_\d+\s*>|```", re.IGNORECASE)
_OF_GEPA = "within ``` blocks"


@dataclass(frozen=True, kw_only=True)
class BankOptions:
    """Texts of your own in place of an LLM's proposals, each proposed once.

    Attributes:
        kind: "bank".
        path: a text file with one instruction after another (hints for strategy.kind p2o). Lines of
            `---` separate them; in a file without such a line, blank lines do.
        hints: the hints, in the same form, for strategy.kind inspo+p2o; path then holds the instructions.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: Literal["bank"] = "bank"
    path: Path
    hints: Path | None = None

    def __post_init__(self) -> None:
        # In Python a text will do.
        object.__setattr__(self, "path", Path(self.path))
        object.__setattr__(self, "hints", None if self.hints is None else Path(self.hints))

    def describe(self) -> str:
        """Return what proposes, and its files."""
        names = " and ".join(path.name for path in (self.path, self.hints) if path is not None)
        return f"a bank of written texts ({names}), not an LLM"

    @property
    def public_name(self) -> str:
        """Return what proposes, without what is private to a machine."""
        return self.describe()


def check_bank(bank: BankOptions, method: Method[Any]) -> None:
    """Raise ValueError unless a bank has a file for each kind of text that the method evolves."""
    both = len(method.evolves) > 1
    if both and bank.hints is None:
        raise ValueError(
            f"llm.hints: missing; strategy.kind {method.kind} evolves instructions and hints: name a "
            "file of hints, and in llm.path one of instructions"
        )
    if bank.hints is not None and method.evolves and not both:
        raise ValueError(
            f"llm.hints is set, but strategy.kind {method.kind} evolves only {method.evolves[0]}; name "
            "their file in llm.path"
        )


class BankLLM:
    """Answer proposers' prompts with the entries of a bank, as many as they ask for.

    An entry is proposed once. The state is the hashes of the texts that were proposed, so entries may be
    added to the files before a resume. When none is left, BudgetError says so.

    Args:
        options: the files.

    Raises:
        ConfigError: a file cannot be read, holds no entry, or an entry that no reply can hold.
    """

    origin = "bank"
    advice = "correct the bank's texts or add others, and resume"

    def __init__(self, options: BankOptions) -> None:
        self.identity = options.describe()
        self._entries = _Entries(options.path, "llm.path")
        self._hints = self._entries
        if options.hints is not None:
            self._hints = _Entries(options.hints, "llm.hints")

    def complete(self, prompt: str) -> Completion:
        """Return the next entries in the form that a prompt asks for.

        Raises:
            BudgetError: none is left.
            LLMError: the prompt asks for no form that is known.
        """
        if (count := candidates_asked(prompt)) is not None:
            texts = self._entries.take(count)
            candidates = (f"<ins_{i}>\n{text}\n</ins_{i}>" for i, text in enumerate(texts, 1))
            return Completion("\n\n".join(candidates))
        if _OF_GEPA not in prompt:
            raise LLMError(
                "a bank answers the prompts of INSPO, GEPA and P²O only; set another llm"
            )
        entries = self._entries if ABOUT_AN_AGENT in prompt else self._hints
        return Completion(f"```\n{entries.take(1)[0]}\n```")

    def state_dict(self) -> State:
        return {"used": sorted(self._entries.used), "used_hints": sorted(self._hints.used)}

    def load_state_dict(self, state: State) -> None:
        self._entries.used = set(state["used"])
        self._hints.used = set(state.get("used_hints", state["used"]))


class _Entries:
    """The entries of a file, in the order in which they are proposed.

    Attributes:
        used: hashes of the entries that were proposed.
    """

    def __init__(self, path: Path, field: str) -> None:
        self._path = path
        self.used = set[str]()
        self.texts = read_bank(path, field)

    def take(self, count: int) -> Sequence[str]:
        """Return the next entries, at most `count`; raise BudgetError if there is none."""
        unused = [text for text in self.texts if _hash(text) not in self.used][:count]
        if not unused:
            raise BudgetError(
                f"the bank {self._path.name} is exhausted: its {len(self.texts)} texts have all been "
                "proposed"
            )
        self.used |= {_hash(text) for text in unused}
        return unused


def read_bank(path: Path, field: str) -> list[str]:
    """Return the entries of a bank's file, each once.

    Args:
        field: named in errors.

    Raises:
        ConfigError: see `BankLLM`.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"{field}: cannot read {path}: {reason}; name a text file") from error
    separator = _RULE if _RULE.search(text) else _BLANK
    entries = list(dict.fromkeys(part.strip() for part in separator.split(text) if part.strip()))
    if not entries:
        raise ConfigError(
            f"{field}: {path} holds no text; expected one or more, separated by blank lines or lines "
            "of ---"
        )
    for number, entry in enumerate(entries, 1):
        if mark := _ENDS.search(entry):
            raise ConfigError(
                f"{field}: text {number} of {path} contains {mark.group()}, which a proposal cannot; "
                "remove it"
            )
    return entries


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
