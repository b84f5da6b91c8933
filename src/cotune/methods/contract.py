"""The contract of a proposed text: the checks before a candidate costs any rollout.

A candidate that breaks it is rejected with the reason, never repaired. That it must not hold answers
of the questions that its author was shown is the second line of defence, which a translation evades. The first is
provenance: a text is not judged on these questions (`types.Instruction.shown`).
"""

import difflib
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cotune.errors import ConfigError
from cotune.methods.method import Context
from cotune.types import Task

# ---- answers, found by comparing words

_MIN_LETTERS = 4
_MIN_DIGITS = 3
_RUN = 5
_LATEX = re.compile(r"\\[A-Za-z]+")
# What may group the digits of a number: a comma or a blank, also as LaTeX writes them.
_GROUPING = re.compile(r"(?<=[0-9])(?:[,\s~]|\\[,;:! ]|\{,\})(?=[0-9]{3}(?![0-9]))")
# Scripts without spaces between words, one character a word: Thai and Lao, Myanmar, Khmer, kana, Han.
_DENSE = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff]"
)
_COMMON_WORDS = """
about actor actress album animal answer author band black blue book both city company country director east
false female film first left male movie neither none north novel other person politician question right same
second singer song south team third true unknown west white writer year years
"""
"""Answers that instructions contain by chance."""
_COMMON = frozenset(_COMMON_WORDS.split())


def folded(text: str) -> str:
    """Return a text in NFKD and case-folded, without accents, vowel points and invisible characters.

    >>> folded("Zürich") == folded("ZU\\u0308\\u200bRICH") == "zurich"
    True
    """
    characters = unicodedata.normalize("NFKD", text.casefold()).casefold()
    return "".join(c for c in characters if unicodedata.category(c) not in ("Mn", "Cf"))


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a text in order, folded, without punctuation.

    Every character of a script without spaces is a word.

    >>> words_of("_Burkina_Faso_: 48km")
    ('burkina', 'faso', '48km')
    """
    characters = (
        c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in folded(text)
    )
    return tuple(_DENSE.sub(r" \g<0> ", "".join(characters)).split())


def leaked_answer(candidate: str, parent: str, tasks: Iterable[Task]) -> str | None:
    """Return the first ground-truth answer that is in the candidate but not in its parent.

    Compares whole words, and numbers without grouping. An answer of more than five words counts if five in
    a row are shared. Skips answers of common words only and those of fewer than four letters or three digits, which
    texts contain by chance.
    """
    new = _spaced(candidate)
    old = _spaced(parent)
    for task in tasks:
        for answer in task.answers:
            if any(part in new and part not in old for part in _telling(answer)):
                return answer
    return None


@lru_cache(maxsize=8192)
def _spaced(text: str) -> str:
    """Return the words with a blank around each; cached, since every text of a phase is compared."""
    return f" {' '.join(words_of(_GROUPING.sub('', text)))} "


@lru_cache(maxsize=8192)
def _telling(answer: str) -> tuple[str, ...]:
    """Return the parts of an answer that give it away, with blanks around; () if chance explains them.

    They are all runs of five words, or the whole of a shorter one. In a script without spaces each character is a
    word, and chance explains all of them.
    """
    words = _spaced(_LATEX.sub(" ", answer)).split()
    count = min(len(words), _RUN)
    parts = [words[i : i + count] for i in range(len(words) - count + 1)]
    return tuple(f" {' '.join(part)} " for part in parts if not _by_chance(part))


def _by_chance(words: Sequence[str]) -> bool:
    text = "".join(words)
    if text.isdigit():
        return len(text) < _MIN_DIGITS
    return len(text) < _MIN_LETTERS or all(word in _COMMON or len(word) < 3 for word in words)


# ---- the rules

_TAG = re.compile(r"</?[A-Za-z][\w-]*>")
# Tags of INSPO's proposal prompts (`inspo.proposers`): in an instruction they would break them.
# Blanks are allowed, as in the parser of replies.
_RESERVED = re.compile(r"<\s*(?:/\s*)?(?:ins_\d+|score_\d+|example|history)\s*>", re.IGNORECASE)
_LEAST_WORDS = 3  # an ellipsis of an echoed format, or a dash, is no text
MAX_CHARS = 4000
"""Length limit of an instruction or a hint, in characters."""


def protocol_tags(text: str) -> list[str]:
    """Return every opening and closing tag of a text once, in order of appearance.

    >>> protocol_tags("Reason in <think> and </think>, then <think> again.")
    ['<think>', '</think>']
    """
    return list(dict.fromkeys(_TAG.findall(text)))


def check_same_initial(saved: str, current: str) -> None:
    """Raise ConfigError if a saved run began with another instruction than this one."""
    if saved != current:
        raise ConfigError(
            f"the saved run's initial instruction is {saved!r}, this run's {current!r}; expected the same: "
            "restore it in the run file"
        )


def reserved_tags(text: str) -> list[str]:
    """Return the tags that only proposal prompts may contain."""
    return list(dict.fromkeys(m.group() for m in _RESERVED.finditer(text)))


def neutralised(text: str) -> str:
    """Return the text with the angle brackets of reserved tags replaced by round ones."""
    return _RESERVED.sub(lambda m: f"({m.group()[1:-1]})", text)


def is_near_copy(a: str, b: str) -> bool:
    """Return whether two texts differ by at most two words, case, accents and punctuation aside.

    A replaced word counts as two, and every character of a script without spaces as a word. Counted in words, not as a
    ratio: one short sentence can change all, and in a long instruction a ratio would call that a copy.
    """
    words_a = words_of(a)
    words_b = words_of(b)
    matcher = difflib.SequenceMatcher(None, words_a, words_b, autojunk=False)
    shared = sum(block.size for block in matcher.get_matching_blocks())
    return len(words_a) + len(words_b) - 2 * shared <= 2


@dataclass(frozen=True, slots=True)
class TextRules:
    """The contract of every instruction in a run, or of every hint.

    Attributes:
        original: the initial instruction, whose tags are the protocol's; "" for hints.
        count_tokens: counts a text's tokens; None if no tokenizer is available.
        max_tokens: length limit in tokens; None for none.
        control_tokens: the policy's special tokens as text; a chat template would obey them.
        required: further texts without which no policy can act.
        beside: the instruction that a hint stands beside; text already in it is not a leak.
    """

    original: str = ""
    count_tokens: Callable[[str], int] | None = None
    max_tokens: int | None = None
    control_tokens: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    beside: str = ""

    @classmethod
    def of_instructions(cls, context: Context) -> "TextRules":
        """Return the rules of a run; ConfigError if nothing can evolve from its instruction."""
        instruction = context.instruction
        if not instruction.strip():
            raise ConfigError("the initial instruction is blank; expected a text")
        if reserved := reserved_tags(instruction):
            raise ConfigError(
                f"the initial instruction holds {', '.join(reserved)}; these tags are reserved for "
                "proposals: rename them"
            )
        required = tuple(context.required)
        return replace(cls.of_hints(context), original=instruction, required=required, beside="")

    @classmethod
    def of_hints(cls, context: Context) -> "TextRules":
        """Return the rules of a run's hints."""
        return cls(
            count_tokens=context.count_tokens,
            max_tokens=context.max_tokens,
            control_tokens=tuple(context.control_tokens),
            beside=context.instruction,
        )

    @property
    def kept_texts(self) -> tuple[str, ...]:
        """Return the texts that every candidate must contain."""
        return tuple(dict.fromkeys((*protocol_tags(self.original), *self.required)))

    def check(
        self, candidate: str, parent: str, others: Iterable[str], tasks: Sequence[Task]
    ) -> str | None:
        """Return why the candidate is rejected, in a few words; None if it is valid.

        Args:
            parent: the text it was derived from; what is already in it is not a leak.
            others: texts alive or already tried, which it must not copy.
            tasks: the questions that its author was shown, whose answers it must not contain.
        """
        if len(words_of(candidate)) < _LEAST_WORDS:
            return f"fewer than {_LEAST_WORDS} words"
        if any("\ud800" <= character <= "\udfff" for character in candidate):
            return "holds half of a UTF-16 pair, which no tokenizer takes"
        if missing := [text for text in self.kept_texts if text not in candidate]:
            return f"lost {', '.join(missing)}"
        if reserved := reserved_tags(candidate):
            return f"holds {', '.join(reserved)}, which only proposals may"
        if forged := [token for token in self.control_tokens if token in candidate]:
            return f"holds {', '.join(forged)}, which only the chat template may"
        unclosed = candidate.count("<think>") - candidate.count("</think>")
        if unclosed > 0:
            return "unclosed <think>"
        # A stray tag in a hint would end the thoughts of a template that looks for them.
        if unclosed < 0 and not self.original:
            return "stray </think>"
        if len(candidate) > MAX_CHARS:
            return f"{len(candidate)} characters; {MAX_CHARS} allowed"
        tokens = self.count_tokens(candidate) if self.count_tokens is not None else 0
        if self.max_tokens is not None and tokens > self.max_tokens:
            return f"{tokens} tokens; {self.max_tokens} allowed"
        if (answer := leaked_answer(candidate, f"{self.beside}\n{parent}", tasks)) is not None:
            return f"brings in the answer {answer!r} of a training question"
        if any(is_near_copy(candidate, other) for other in others):
            return "near copy of one alive or tried"
        return None
