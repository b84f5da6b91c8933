"""The contract of a hint: an instruction's, plus nothing from a hard question's solution."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from cotune.methods.instruction_rules import InstructionRules, ngrams, words_of
from cotune.methods.text_evolution import PLACEHOLDERS
from cotune.types import Task

_THINK_TAG = re.compile(r"</?think>")
_NUMBER = re.compile(r"(?<![\w.])[0-9][0-9,]*(?:\.[0-9]+)?(?!\w)")
_NUMERIC_ANSWER = re.compile(r"[-+$\s]*[0-9][0-9,]*(?:\.[0-9]+)?[%\s]*")
_MIN_DIGITS = 3
_SHARED_WORDS = 5


def numbers_of(text: str) -> set[str]:
    """Return the numbers that are whole words, without sign, separators and redundant zeros.

    >>> sorted(numbers_of("1,234 and 0.50, not x7"))
    ['0.5', '1', '1234', '234']
    """
    found: set[str] = set()
    for match in _NUMBER.finditer(text):
        # "100,200" is one number or two: both readings count.
        found |= {_plain(part) for part in (match.group(), *match.group().split(",")) if part}
    return found


def _plain(number: str) -> str:
    whole, _, fraction = number.replace(",", "").partition(".")
    fraction = fraction.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")


def leaked_number(candidate: str, known: str, tasks: Iterable[Task]) -> str | None:
    """Return the first answer of three or more digits that the candidate contains.

    Numbers of one or two digits are skipped, since hints contain them by chance, and so are those
    in `known`.
    """
    new = {n for n in numbers_of(candidate) - numbers_of(known) if _digits(n) >= _MIN_DIGITS}
    if not new:
        return None
    for task in tasks:
        for answer in task.answers:
            numeric = _NUMERIC_ANSWER.fullmatch(answer)
            if numeric and _plain(re.sub(r"[^0-9.]", "", answer)) in new:
                return answer
    return None


def _digits(number: str) -> int:
    return sum(character.isdigit() for character in number)


def quoted_solution(candidate: str, instruction: str, tasks: Iterable[Task]) -> str | None:
    """Return the first five consecutive words that the candidate shares with a task's solution.

    Compares case-insensitively and without punctuation; the instruction's own words are skipped.
    """
    new = ngrams(words_of(candidate), _SHARED_WORDS)
    runs = [f" {' '.join(run)} " for run in new - ngrams(words_of(instruction), _SHARED_WORDS)]
    for task in tasks:
        solution = _spaced(task.solution)
        # Sorted, so that the run that is named does not depend on string hashing.
        if shared := sorted(run for run in runs if run in solution):
            return shared[0].strip()
    return None


@lru_cache(maxsize=8192)
def _spaced(text: str) -> str:
    """Return the words with a blank around each; cached, since every hint of a phase is compared."""
    return f" {' '.join(words_of(text))} "


def think_tags_match(text: str) -> bool:
    """Return whether every <think> is closed and every </think> was opened."""
    depth = 0
    for tag in _THINK_TAG.finditer(text):
        depth += 1 if tag.group() == "<think>" else -1
        if depth < 0:
            return False
    return depth == 0


@dataclass(frozen=True, slots=True)
class HintRules(InstructionRules):
    """The contract of every hint in a run. A hint that breaks it is rejected, never repaired."""

    original: str = ""  # it has no protocol tags to keep

    def check(
        self,
        candidate: str,
        parent: str,
        others: Iterable[str],
        tasks: Iterable[Task],
        instruction: str = "",
    ) -> str | None:
        """Return why the candidate is rejected, in a few words; None if it is valid.

        Args:
            parent: the hint it was derived from; may be empty.
            others: hints already tried in this phase, which it must not copy.
            tasks: the hard questions, whose answers and solutions it must not contain.
            instruction: the policy's instruction; text already in it is not a leak.
        """
        if placed := [p for p in PLACEHOLDERS if p in candidate]:
            return f"holds {', '.join(placed)}, which only the reflection prompt may"
        if not think_tags_match(candidate):
            return "unclosed or stray think tag"
        known, tasks = f"{instruction}\n{parent}", list(tasks)
        # A text of a few words is always within two words of the empty hint; that is not a copy.
        earlier = [text for text in (parent, *others) if text.strip()]
        if reason := InstructionRules.check(self, candidate, known, earlier, tasks):
            return reason
        if (answer := leaked_number(candidate, known, tasks)) is not None:
            return f"brings in the answer {answer!r} of a hard question"
        if (quoted := quoted_solution(candidate, instruction, tasks)) is not None:
            return f"quotes the solution of a hard question: {quoted!r}"
        return None
