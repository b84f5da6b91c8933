"""Offline rules for a world with a few ways of working: one remedy for each lack of a failed rollout.

The rules keep an instruction's own sentences, hold one remedy at a time or one for each lack, and add or drop
sentences that ask for nothing. They do not know which remedy is better: verification has to find out.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import yaml

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_KEPT = 0.7
"""Chance that a candidate keeps all sentences that ask for nothing."""


L = TypeVar("L", bound=StrEnum)

Failed = Sequence[tuple[str, str]]
"""Questions with their failed responses."""
Writer = Callable[[random.Random], list[str]]
"""Writes a candidate, as sentences."""


class Rules(Protocol):
    """The rules of a world: how they write instructions and hints."""

    def reflect(self, parent: str, failed: Failed) -> tuple[str, Writer]: ...

    def write_hint(self, current: str, failed: Failed, rng: random.Random) -> str: ...

    def paraphrase(self, parent: str) -> Writer: ...


class Remedies(Generic[L]):
    """The sentences of a world's rules.

    Args:
        remedies: for each lack, in the critique's wording, the sentences that remedy it.
        style: sentences that ask for nothing.
        lacks: (question, failed response) to what it lacks.
        keeps_others: the share of the candidates that keep the remedies of other lacks.
    """

    def __init__(
        self,
        remedies: Mapping[L, Sequence[str]],
        style: Sequence[str],
        lacks: Callable[[str, str], Sequence[L]],
        keeps_others: float = 0.0,
    ) -> None:
        self._remedies, self._style, self._lacks = remedies, style, lacks
        self._keeps_others = keeps_others
        self._lack_of = {s: lack for lack, options in remedies.items() for s in options}

    def reflect(self, parent: str, failed: Failed) -> tuple[str, Writer]:
        """Return a critique, and a function that writes a candidate with one remedy."""
        counts = Counter(lack for shown in failed for lack in self._lacks(*shown))
        critique = "What went wrong:\n" + "\n".join(f"- {lack} ({n})" for lack, n in counts.items())

        def write(rng: random.Random) -> list[str]:
            lack = rng.choices(list(counts), list(counts.values()))[0]
            return self._with_remedy(parent, self._fresh(lack, parent, rng), rng)

        return critique, write

    def write_hint(self, current: str, failed: Failed, rng: random.Random) -> str:
        """Return a hint of one sentence."""
        lacks = [lack for shown in failed for lack in self._lacks(*shown)]
        return self._fresh(rng.choice(lacks), current, rng)

    def paraphrase(self, parent: str) -> Writer:
        """Return a function that writes the parent's sentences between sentences that ask for nothing."""

        def write(rng: random.Random) -> list[str]:
            fixed = [s for s in sentences_of(parent) if s not in self._style]
            for _ in range(rng.choice((1, 1, 2))):
                fixed.insert(rng.choice((0, len(fixed))), rng.choice(self._style))
            return list(dict.fromkeys(fixed))

        return write

    def _fresh(self, lack: L, current: str, rng: random.Random) -> str:
        return rng.choice([s for s in self._remedies[lack] if s not in current])

    def _with_remedy(self, parent: str, remedy: str, rng: random.Random) -> list[str]:
        """Return the parent's sentences with the remedy in place of earlier ones."""
        own = self._lack_of.get(remedy)
        keeps = self._keeps_others > 0 and rng.random() < self._keeps_others
        sentences = [
            s
            for s in sentences_of(parent)
            if s not in self._lack_of or (keeps and self._lack_of[s] != own)
        ]
        styles = [s for s in sentences if s in self._style]
        if styles and rng.random() >= _KEPT:
            sentences.remove(rng.choice(styles))
        sentences.insert(rng.choice((0, len(sentences))), remedy)
        return list(dict.fromkeys(sentences))


def sentences_of(text: str) -> list[str]:
    """Split a text into its sentences."""
    return [s for s in _SENTENCE_END.split(text) if s]


def read_sentences(world: str) -> dict[str, Any]:
    """Return the sentences of a bundled world, from the file beside this module."""
    file = Path(__file__).with_name(f"{world}_sentences.yaml")
    return yaml.safe_load(file.read_text(encoding="utf-8"))
