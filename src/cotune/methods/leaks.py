"""Detect the answers and solutions of shown questions in a proposed text, by comparing words.

This is the second line of defence and can be evaded, by a translation for example. The first is
provenance: a text is not judged on questions that its author was shown (`types.Instruction.shown`).
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

from cotune.types import Task

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


def is_dense(words: Sequence[str]) -> bool:
    """Return whether most words are characters of a script without spaces."""
    return 2 * sum(_DENSE.fullmatch(word) is not None for word in words) > len(words)


def runs(words: Sequence[str]) -> set[str]:
    """Return every run of five words, or of ten characters of a script without spaces."""
    count = 2 * _RUN if is_dense(words) else _RUN
    return {" ".join(words[i : i + count]) for i in range(len(words) - count + 1)}


def leaked_answer(candidate: str, parent: str, tasks: Iterable[Task]) -> str | None:
    """Return the first ground-truth answer that is in the candidate but not in its parent.

    Compares whole words, and numbers without grouping. An answer of more than five words counts if five in
    a row are shared. Skips answers of common words only and those of fewer than four letters (two in a
    script without spaces) or three digits, which texts contain by chance.

    Args:
        tasks: the questions that the candidate's author was shown.
    """
    new = _spaced(candidate)
    old = _spaced(parent)
    for task in tasks:
        for answer in task.answers:
            if any(part in new and part not in old for part in _telling(answer)):
                return answer
    return None


def quoted_solution(candidate: str, earlier: str, tasks: Iterable[Task]) -> str | None:
    """Return the first run of words that the candidate shares with a task's solution, unless `earlier` has it."""
    new = sorted(runs(words_of(candidate)) - runs(words_of(earlier)))
    for task in tasks:
        solution = _spaced(task.solution)
        for run in new:
            if f" {run} " in solution:
                return run
    return None


@lru_cache(maxsize=8192)
def _spaced(text: str) -> str:
    """Return the words with a blank around each; cached, since every text of a phase is compared."""
    return f" {' '.join(words_of(_GROUPING.sub('', text)))} "


@lru_cache(maxsize=8192)
def _telling(answer: str) -> tuple[str, ...]:
    """Return the parts of an answer that give it away, with blanks around; () if chance explains them."""
    words = _spaced(_LATEX.sub(" ", answer)).split()
    parts = sorted(runs(words)) or [" ".join(words)]
    return tuple(f" {part} " for part in parts if not _by_chance(part.split()))


def _by_chance(words: Sequence[str]) -> bool:
    text = "".join(words)
    if text.isdigit():
        return len(text) < _MIN_DIGITS
    letters = len(text) * (2 if is_dense(words) else 1)
    return letters < _MIN_LETTERS or all(word in _COMMON or len(word) < 3 for word in words)
