"""Offline rules that propose from a bank: which forms of instruction a failed rollout calls for.

A failed reply shows what it lacks, and each lack calls for a few sections of the bank; hints are those for the
types of the failed questions. The rules do not know which text is best: verification has to find out. Like a
model, they also propose texts that do not help.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from cotune.worlds.rules_llm import Example, Writer
from cotune_lab.last_number import last_number
from cotune_lab.worlds import arith, extract3
from cotune_lab.worlds.bank import Bank, Sections, read_sections

_ASTRAY = 0.25
"""Share of the proposals that come from any section."""
_STOPPED = re.compile(r"\n\[stopped: [^\]]*\]\s*$")
_LONG = 12  # words


class Lack(StrEnum):
    """A lack that can be seen in a failed reply; the value is the critique's wording."""

    NO_ANSWER = "the reply names no answer of the kind that is asked for"
    SEVERAL = "the reply names several of them"
    LONG = "the reply is long"
    WRONG = "the reply is short and wrong"


@dataclass(frozen=True)
class BankRules:
    """The rules of one task.

    Attributes:
        initial: its initial instruction.
        bank: its texts.
        type_of: the type of a question; None for a question of another task.
        lack: what a failed reply to a question lacks.
        calls_for: the sections of instructions that a lack calls for.
    """

    initial: str
    bank: Bank
    type_of: Callable[[str], str | None]
    lack: Callable[[str, str], Lack]
    calls_for: Mapping[Lack, tuple[str, ...]]

    def reflect(self, parent: str, failed: Sequence[Example]) -> tuple[str, Writer]:
        """Return a critique, and a function that writes a candidate.

        Args:
            parent: the instruction that failed.
            failed: examples of failed replies.
        """
        counts = Counter(self.lack(e.question, _STOPPED.sub("", e.response)) for e in failed)
        critique = "What went wrong:\n" + "\n".join(f"- {lack} ({n})" for lack, n in counts.items())
        sections = [name for lack in counts.elements() for name in self.calls_for[lack]]
        return critique, _writer(self.bank.instructions, sections, parent)

    def paraphrase(self, parent: str) -> Writer:
        """Return a function that writes another instruction of the parent's section."""
        return _writer(self.bank.instructions, self._sections_of(parent), parent)

    def write_hint(
        self, current: str, failed: Sequence[Example], rng: random.Random
    ) -> tuple[str, str]:
        """Return no critique, and a hint on the type of one of the failed questions."""
        types = [kind for example in failed if (kind := self.type_of(example.question))]
        if not types:
            types = list(self.bank.hints)
        return "", rng.choice([h for h in self.bank.hints[rng.choice(types)] if h not in current])

    def knows(self, instruction: str) -> bool:
        """Return whether an instruction is this task's initial one or stands in its bank."""
        return instruction.strip() == self.initial or bool(self._sections_of(instruction))

    def _sections_of(self, text: str) -> list[str]:
        return [name for name, texts in self.bank.instructions.items() if text.strip() in texts]


def _writer(bank: Sections, sections: Sequence[str], parent: str) -> Writer:
    """Return a function that draws from the sections an instruction that was not drawn before."""
    drawn = {parent.strip()}
    everything = [text for texts in bank.values() for text in texts]

    def write(rng: random.Random) -> list[str]:
        astray = not sections or rng.random() < _ASTRAY
        pool = everything if astray else bank[rng.choice(sections)]
        fresh = [text for text in pool if text not in drawn]
        fresh = fresh or [text for text in everything if text not in drawn]
        text = rng.choice(fresh or everything)
        drawn.add(text)
        return [text]

    return write


def _lack_of_arith(question: str, reply: str) -> Lack:
    if last_number(reply) is None:
        return Lack.NO_ANSWER
    return Lack.LONG if len(reply.split()) > _LONG else Lack.WRONG


def _lack_of_extract3(question: str, reply: str) -> Lack:
    words = extract3.all_words(reply)
    if len(words) > extract3.MAX_WORDS:
        return Lack.LONG
    named = len(extract3.candidates(question) & set(words))
    return Lack.NO_ANSWER if not named else Lack.SEVERAL if named > 1 else Lack.WRONG


@cache
def _all_rules() -> tuple[BankRules, ...]:
    """Read the banks, when they are first needed."""
    return (
        BankRules(
            arith.INITIAL_INSTRUCTION,
            read_sections(arith.BANK),
            arith.type_of,
            _lack_of_arith,
            {
                Lack.NO_ANSWER: ("short form", "equation", "worked example"),
                Lack.SEVERAL: ("short form", "equation"),
                Lack.LONG: ("short form", "equation", "careful"),
                Lack.WRONG: ("step by step", "worked example", "careful"),
            },
        ),
        BankRules(
            extract3.INITIAL_INSTRUCTION,
            read_sections(extract3.BANK),
            extract3.type_of,
            _lack_of_extract3,
            {
                Lack.NO_ANSWER: ("quote", "worked example", "short form"),
                Lack.SEVERAL: ("one person", "short form"),
                Lack.LONG: ("short form", "worked example"),
                Lack.WRONG: ("one person", "step by step", "quote"),
            },
        ),
    )


def rules_of(question: str, instruction: str) -> BankRules | None:
    """Return the rules of the task that a question or an instruction belongs to."""
    for rules in _all_rules():
        if rules.type_of(question) is not None or rules.knows(instruction):
            return rules
    return None
