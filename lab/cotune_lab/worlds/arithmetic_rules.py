"""The offline rules for the world `arithmetic`: which procedure a failed problem calls for.

Only the kind of the problem counts, not the response. An instruction may ask for the procedures of several
kinds; the bundled policy then follows each of them less.
"""

import random
import re
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from cotune.worlds.rules_llm import Example, Remedies
from cotune_lab.worlds.geo_rules import CAUTION, with_advice


class Kind(StrEnum):
    """A kind of problem whose procedure is missing."""

    ADDITION = "addition"
    SUBTRACTION = "subtraction"
    MULTIPLICATION = "multiplication"
    WORD_PROBLEM = "word problem"


ADVICE: dict[Kind, tuple[str, ...]] = {
    Kind.ADDITION: (
        "When you add, write the columns and carry.",
        "For additions, go column by column from the right.",
        "Write sums column by column.",
        "Add from the right, column by column, and carry.",
        "To add, work in columns with carries.",
        "In additions, go from the right and write each carry.",
    ),
    Kind.SUBTRACTION: (
        "When you subtract, go by columns and borrow.",
        "For subtractions, show each borrow from the next column.",
        "Write differences column by column with borrowing.",
        "Subtract in columns and write each borrow.",
        "To subtract, borrow from the next column where needed.",
        "In subtractions, work from the right and borrow.",
    ),
    Kind.MULTIPLICATION: (
        "When you multiply, take one digit at a time and carry.",
        "For products, go digit by digit from the right.",
        "Write each product one digit at a time.",
        "Multiply every digit by the number and carry.",
        "To multiply, go digit by digit with carries.",
        "In multiplications, work one digit at a time from the right.",
    ),
    Kind.WORD_PROBLEM: (
        "When you solve a story, write both steps.",
        "For word problems, work out the first step first.",
        "Write both steps of a story.",
        "Solve stories one step at a time, first result first.",
        "To solve a word problem, show each step.",
        "In a story with two steps, write the first result.",
    ),
}
"""The remedy for each kind."""
_KEEPS_OTHERS = 0.5


def kind_of(question: str) -> Kind | None:
    """Return the kind of an arithmetic problem; None for anything else."""
    for kind, pattern in (
        (Kind.ADDITION, r"\d \+ \d"),
        (Kind.SUBTRACTION, r"\d - \d"),
        (Kind.MULTIPLICATION, r"\d \* \d"),
        (Kind.WORD_PROBLEM, r"How many .* (?:left|that)\?"),
    ):
        if re.search(pattern, question):
            return kind
    return None


def lacks(question: str, _response: str) -> list[Kind]:
    """Return the kind whose procedure a failed problem calls for."""
    kind = kind_of(question)
    return [kind] if kind else []


def advises(text: str) -> bool:
    """Return whether a text holds a remedy of these rules."""
    return any(sentence in text for sentences in ADVICE.values() for sentence in sentences)


class _Rules(Remedies):
    """Remedies beside which half of the candidates, and some hints, keep what they said about other kinds."""

    def write_hint(
        self, current: str, failed: Sequence[Example], rng: random.Random
    ) -> tuple[str, str]:
        """Return a hint about a kind that failed; the kinds that fail often are drawn more often."""
        counts = Counter(self._all_lacks(failed))
        kind = rng.choices(list(counts), list(counts.values()))[0]
        return "", with_advice(current, ADVICE[Kind(kind)], rng)

    def _without_remedies(
        self, sentences: Sequence[str], remedy: str, rng: random.Random
    ) -> list[str]:
        replaced = self._lack_of.get(remedy)
        keeps_others = rng.random() < _KEEPS_OTHERS
        return [
            s
            for s in sentences
            if s not in self._lack_of or (keeps_others and self._lack_of[s] != replaced)
        ]


RULES = _Rules(ADVICE, CAUTION, lacks)
