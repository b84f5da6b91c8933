"""Requests: sentences that ask a bundled policy for a way of working, or forbid one.

A request is a verb or noun phrase in a frame. Frames also negate and contrast, so that the words of a phrase
do not say what to do: "Repeat each search." and "Do not repeat each search." share them all.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from recipes.geo.phrases import expand

FRAMES = (
    "{X}.", "Please {x}.", "Always {x}.", "You should {x}.", "You must {x}.", "It helps to {x}.",
    "It is best to {x}.", "Remember to {x}.", "Make sure to {x}.", "The trick is to {x}.",
    "First {x}, then answer.", "To answer, {x}.", "A good plan is to {x}.", "Take care to {x}.",
    "I want you to {x}.", "The way to do this is to {x}.", "Every time, {x}.", "Try to {x}.",
    "To {x} helps.", "What helps is to {x}.", "Yes, {x}.", "Let us {x}.", "Here, {x}.",
    "Now and next time, {x}.", "{X}: that is the way.", "Before you answer, {x}.", "{X}, then answer.",
)  # fmt: skip
NOUN_FRAMES = (
    "Use {n}.", "Make {n}.", "You need {n}.", "The way is {n}.", "{N}: that helps.", "It needs {n}.",
    "{N}, please.", "I want {n}.", "The right thing is {n}.", "Work with {n}.", "{N}.", "Answer after {n}.",
)  # fmt: skip
NEGATED = (
    "Do not {x}.", "Never {x}.", "You need not {x}.", "There is no need to {x}.", "It is wrong to {x}.",
    "It does not help to {x}.", "Please do not {x}.", "You must not {x}.", "You should never {x}.",
    "It is a mistake to {x}.", "Do not ever {x}.", "To {x} would be wrong.", "{X}? No.",
    "Nobody should {x}.", "What you must not do is to {x}.", "It never helps to {x}.",
    "I do not want you to {x}.", "The mistake is to {x}.", "Here you do not {x}.", "Not once should you {x}.",
)  # fmt: skip
NOUNS_NEGATED = (
    "Do not use {n}.", "Never make {n}.", "You do not need {n}.", "{N} would be wrong.", "{N}? No.",
    "Not {n}.", "{N} should not be used.", "I do not want {n}.", "Without {n}.", "{N} does not help.",
)  # fmt: skip
CONTRASTED = (
    "Do not {y}, but {x}.", "Rather than {y}, {x}.", "{X} rather than {y}.", "{X}; do not {y}.",
    "It is better to {x} than to {y}.", "Never {y}: {x}.", "You may want to {y}, but {x}.",
    "{X}, and do not {y}.", "Others {y}. You {x}.", "It is wrong to {y}; {x}.",
)  # fmt: skip
NOUNS_CONTRASTED = (
    "{N}, not {m}.", "Not {m}, but {n}.", "Use {n}, never {m}.", "{N} rather than {m}.",
    "In place of {m}, make {n}.", "{M} would be wrong: use {n}.", "Instead of {m}, use {n}.",
)  # fmt: skip
_OF_NOUNS = 0.25
"""Share of the requests that are built from noun phrases."""
_CONTRASTS = 0.3
"""Share of the requests for a way that forbid another in the same sentence."""

W = TypeVar("W")


@dataclass(frozen=True)
class Request(Generic[W]):
    """A sentence and what it asks for.

    Attributes:
        way: the way that it asks for; the grammar's way for "nothing" if it only forbids one.
    """

    text: str
    way: W


class Grammar(Generic[W]):
    """The requests of a world, and its sentences that ask for nothing.

    A phrase may end with " @" and its occasion, as in "write the carry @when you add": the occasion
    stands behind the phrase or at the beginning of the sentence.

    Args:
        verbs: patterns of verb phrases for each way.
        nouns: patterns of noun phrases for each way.
        neutral: patterns of sentences that ask for nothing.
        forbidden: the ways that a request may forbid without asking for another.
        otherwise: how the policy works if a way is forbidden.
    """

    def __init__(
        self,
        verbs: Mapping[W, Sequence[str]],
        nouns: Mapping[W, Sequence[str]],
        neutral: Sequence[str],
        forbidden: Sequence[W],
        otherwise: W,
    ) -> None:
        self._verbs = {way: [expand(p) for p in patterns] for way, patterns in verbs.items()}
        self._nouns = {way: [expand(p) for p in patterns] for way, patterns in nouns.items()}
        self._neutral = [expand(p) for p in neutral]
        self._forbidden, self._otherwise = forbidden, otherwise

    def neutral(self, rng: random.Random) -> str:
        """Draw a sentence that asks for nothing."""
        return rng.choice(rng.choice(self._neutral))

    def request(self, rng: random.Random, way: W) -> Request[W]:
        """Draw a request for a way: plain, or in contrast to another way."""
        other = rng.choice([other for other in self._verbs if other != way])
        contrasts = rng.random() < _CONTRASTS
        if rng.random() < _OF_NOUNS:
            frames = NOUNS_CONTRASTED if contrasts else NOUN_FRAMES
            n, m = (rng.choice(rng.choice(self._nouns[w])) for w in (way, other))
            return Request(_sentence(rng, rng.choice(frames), n=n, m=m), way)
        frames = CONTRASTED if contrasts else FRAMES
        x, y = (rng.choice(rng.choice(self._verbs[w])) for w in (way, other))
        return Request(_sentence(rng, rng.choice(frames), x=x, y=y), way)

    def forbidding(self, rng: random.Random, way: W | None = None) -> Request[W]:
        """Draw a request that forbids a way, by default any, and asks for none."""
        if way is None:
            way = rng.choice(self._forbidden)
        if rng.random() < _OF_NOUNS:
            n = rng.choice(rng.choice(self._nouns[way]))
            return Request(_sentence(rng, rng.choice(NOUNS_NEGATED), n=n), self._otherwise)
        x = rng.choice(rng.choice(self._verbs[way]))
        return Request(_sentence(rng, rng.choice(NEGATED), x=x), self._otherwise)

    def instruction(self, rng: random.Random, initial: str, request: Request[W] | None) -> str:
        """Return the initial instruction with a request and up to two neutral sentences around it."""
        sentences = [self.neutral(rng) for _ in range(rng.choices((0, 1, 2), (5, 3, 2))[0])]
        if request is not None:
            sentences.append(request.text)
        rng.shuffle(sentences)
        place = rng.choices((0, len(sentences), rng.randrange(len(sentences) + 1)), (3, 4, 3))[0]
        return " ".join((*sentences[:place], initial, *sentences[place:]))

    def all_sentences(self) -> set[str]:
        """Return every plain and negated request and every neutral sentence (of contrasts there are too many)."""
        verbs = [p for ps in self._verbs.values() for options in ps for p in options]
        nouns = [p for ps in self._nouns.values() for options in ps for p in options]
        framed = {s for f in (*FRAMES, *NEGATED) for x in verbs for s in _placings(f, x=x)}
        framed |= {
            s for f in (*NOUN_FRAMES, *NOUNS_NEGATED) for n in nouns for s in _placings(f, n=n)
        }
        return framed | {s for options in self._neutral for s in options}


def _sentence(rng: random.Random, frame: str, **phrases: str) -> str:
    options = _placings(frame, **phrases)
    # Without an occasion nothing is drawn: the recipes of ladder and scaffold keep their demonstrations.
    return options[0] if len(options) == 1 else rng.choice(options)


def _placings(frame: str, **phrases: str) -> list[str]:
    """Return a filled frame with the occasions behind their phrases, and with the first one's in front.

    >>> _placings("Do not {x}.", x="borrow @when you subtract")
    ['Do not borrow when you subtract.', 'When you subtract, do not borrow.']
    """
    behind = filled(frame, **{name: text.replace(" @", " ") for name, text in phrases.items()})
    name, first = next(iter(phrases.items()))
    phrase, marked, occasion = first.partition(" @")
    if not marked:
        return [behind]
    request = filled(
        frame, **{k: v.replace(" @", " ") for k, v in (phrases | {name: phrase}).items()}
    )
    lowered = request if request.startswith("I ") else request[0].lower() + request[1:]
    return [behind, f"{occasion[0].upper()}{occasion[1:]}, {lowered}"]


def filled(frame: str, **phrases: str) -> str:
    """Fill a frame's {x}, {y}, {n} and {m}; a capital one begins the sentence.

    >>> filled("{X}; do not {y}.", x="go on", y="stop")
    'Go on; do not stop.'
    """
    capitals = {name.upper(): text[0].upper() + text[1:] for name, text in phrases.items()}
    return frame.format(**phrases, **capitals)
