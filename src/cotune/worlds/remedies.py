"""Offline rules for a world with a few ways of working: one remedy for each lack of a failed rollout.

The rules keep an instruction's own sentences, hold one remedy at a time, and add or drop sentences that ask for
nothing. They do not know which remedy is better: verification has to find out.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_KEEPS_STYLE = 0.7  # chance that a candidate keeps all sentences that ask for nothing


@dataclass(frozen=True, slots=True)
class Example:
    """One rollout, as a reflection prompt shows it: INSPO's with accepted answers, GEPA's with feedback."""

    question: str
    response: str
    answers: tuple[str, ...] = ("",)
    feedback: str = ""


Writer = Callable[[random.Random], list[str]]
"""Writes a candidate, as sentences."""


class Rules(Protocol):
    """The rules of a world: how they write instructions and hints from failed examples."""

    def reflect(self, parent: str, failed: Sequence[Example]) -> tuple[str, Writer]: ...

    def write_hint(
        self, current: str, failed: Sequence[Example], rng: random.Random
    ) -> tuple[str, str]: ...

    def paraphrase(self, parent: str) -> Writer: ...


class Remedies:
    """The sentences of a world's rules.

    Args:
        remedies: for each lack, in the critique's wording, the sentences that remedy it.
        style: sentences that ask for nothing.
        lacks: (question, failed response) to what it lacks.
    """

    def __init__(
        self,
        remedies: Mapping[Any, Sequence[str]],
        style: Sequence[str],
        lacks: Callable[[str, str], Sequence[str]],
    ) -> None:
        self._remedies = remedies
        self._style = style
        self._lacks = lacks
        self._lack_of = {s: lack for lack, sentences in remedies.items() for s in sentences}

    def reflect(self, parent: str, failed: Sequence[Example]) -> tuple[str, Writer]:
        """Return a critique, and a function that writes a candidate with one remedy."""
        counts = Counter(self._all_lacks(failed))
        critique = "What went wrong:\n" + "\n".join(f"- {lack} ({n})" for lack, n in counts.items())

        def write(rng: random.Random) -> list[str]:
            lack = rng.choices(list(counts), list(counts.values()))[0]
            return self._with_remedy(parent, self._fresh(lack, parent, rng), rng)

        return critique, write

    def write_hint(
        self, current: str, failed: Sequence[Example], rng: random.Random
    ) -> tuple[str, str]:
        """Return no critique, and a hint of one sentence."""
        return "", self._fresh(rng.choice(self._all_lacks(failed)), current, rng)

    def paraphrase(self, parent: str) -> Writer:
        """Return a function that writes the parent's sentences between sentences that ask for nothing."""

        def write(rng: random.Random) -> list[str]:
            sentences = [s for s in sentences_of(parent) if s not in self._style]
            for _ in range(rng.choice((1, 1, 2))):
                sentences.insert(rng.choice((0, len(sentences))), rng.choice(self._style))
            return list(dict.fromkeys(sentences))

        return write

    def _all_lacks(self, failed: Sequence[Example]) -> list[str]:
        return [lack for e in failed for lack in self._lacks(e.question, e.response)]

    def _fresh(self, lack: str, current: str, rng: random.Random) -> str:
        return rng.choice([s for s in self._remedies[lack] if s not in current])

    def _with_remedy(self, parent: str, remedy: str, rng: random.Random) -> list[str]:
        """Return the parent's sentences with the remedy in place of earlier ones."""
        sentences = self._without_remedies(sentences_of(parent), remedy, rng)
        styles = [s for s in sentences if s in self._style]
        if styles and rng.random() >= _KEEPS_STYLE:
            sentences.remove(rng.choice(styles))
        sentences.insert(rng.choice((0, len(sentences))), remedy)
        return list(dict.fromkeys(sentences))

    def _without_remedies(
        self, sentences: Sequence[str], remedy: str, rng: random.Random
    ) -> list[str]:
        return [s for s in sentences if s not in self._lack_of]


def sentences_of(text: str) -> list[str]:
    """Split a text into its sentences."""
    return [s for s in _SENTENCE_END.split(text) if s]


def read_sentences(file: Path) -> dict[str, Any]:
    """Return the sentences of a world, which stand in a YAML file."""
    return yaml.safe_load(file.read_text(encoding="utf-8"))


# ---- the rules of `ladder`

# A failed answer without lines calls for any procedure; one with lines calls for either of the other two.
_SENTENCES = read_sentences(Path(__file__).with_name("ladder_sentences.yaml"))
REMEDIES: Mapping[str, Sequence[str]] = _SENTENCES["remedies"]
"""The sentences that remedy each lack, by the critique's wording of it."""
# The lack that a response does not have, by its title.
_REMEDIED = dict(zip(("Together:", "One by one:", "In order:"), REMEDIES, strict=True))


def lacks(response: str) -> list[str]:
    """Return what a failed response lacks."""
    remedied = next((lack for title, lack in _REMEDIED.items() if title in response), None)
    return [lack for lack in REMEDIES if lack != remedied]


RULES = Remedies(REMEDIES, _SENTENCES["style"], lambda _question, response: lacks(response))
