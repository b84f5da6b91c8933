"""The requests that the bundled policy of `ladder` is trained to follow.

A request is a verb phrase in a frame. Frames also negate and contrast, so that the words of a phrase do
not say what to do: "Add them one by one." and "Do not add them one by one." share them all. None of these
sentences stands in `bank.txt` or in the bank that ships with the world; a test holds them apart.
"""

import random
from dataclasses import dataclass
from enum import StrEnum

from recipes.geo.phrases import expand

INITIAL = "Solve the problem. Put the final answer in \\boxed{}."


class Way(StrEnum):
    """A way to answer."""

    TOGETHER = "together"
    ONE_BY_ONE = "one by one"
    AT_ONCE = "at once"


_SMALL = "{the small numbers|the later numbers|the little numbers|the numbers after the first|what is added|two or three numbers|several numbers}"
_EACH = "{each number|every number|each of them|each small number|every single number}"
_THEM = "{the numbers|the small numbers|all numbers|them}"

PHRASES: dict[Way, tuple[str, ...]] = {
    Way.TOGETHER: (
        f"{{add|sum|combine|join|put|take|bundle}} {_SMALL} {{together|in groups|into one|first}}",
        f"{{group|bundle|combine|merge}} {_SMALL}",
        f"{{make|form|build}} {{groups|bundles|one sum|a sum}} {{of|from|out of}} {_SMALL}",
        f"{{total|add up|sum up}} {_SMALL} {{first|before the rest|before you go on}}",
        "{work|add|go} {in groups|group by group|in bundles|several at a time|two or three at a time}",
        "{use|write|add} {one sum|a single sum|few lines|one line} for {several numbers|two or three numbers|a group}",
        "{take|add|handle} {several|two or three} numbers at {once|a time}",
        f"{{collect|gather}} {_SMALL} {{first|into a group|into one sum}}",
    ),
    Way.ONE_BY_ONE: (
        f"{{add|take|handle|treat}} {_THEM} {{one by one|one at a time|singly|one after another|in turn}}",
        f"{{add|take|handle|treat}} {_EACH} {{alone|by itself|on its own|in turn|separately}}",
        f"{{write|use|make}} {{a line|one line|its own line|a step|its own step}} for {_EACH}",
        f"give {_EACH} {{a line|its own line|a step|its own step}}",
        "{work|go|add} {number by number|one by one|line by line|from number to number|one number at a time}",
        "{keep|leave} {the numbers|the small numbers|them} {apart|separate|single}",
        f"{{write down|note|show}} {{the result|the sum|a sum}} after {_EACH}",
        f"{{step|walk}} through {_THEM} {{one by one|singly|in turn}}",
    ),
    Way.AT_ONCE: (
        "{answer|reply} {at once|directly|immediately|straight away|without any steps}",
        "{give|write|say} {only the answer|the answer alone|the result alone|nothing but the result}",
        "{skip|leave out|drop} {the steps|the lines|all work|the working}",
        "{guess|do it in your head|say the first number that comes}",
    ),
}
FRAMES = (
    "{X}.", "Please {x}.", "Always {x}.", "You should {x}.", "You must {x}.", "It helps to {x}.",
    "It is best to {x}.", "Remember to {x}.", "Make sure to {x}.", "The trick is to {x}.",
    "First {x}, then answer.", "To solve it, {x}.", "A good plan is to {x}.", "Take care to {x}.",
    "I want you to {x}.", "The way to do this is to {x}.", "In every problem, {x}.", "Try to {x}.",
)  # fmt: skip
NEGATED = (
    "Do not {x}.", "Never {x}.", "You need not {x}.", "There is no need to {x}.", "It is wrong to {x}.",
    "It does not help to {x}.", "Please do not {x}.", "You must not {x}.", "You should never {x}.",
    "It is a mistake to {x}.", "Do not ever {x}.",
)  # fmt: skip
CONTRASTED = (
    "Do not {y}, but {x}.", "Rather than {y}, {x}.", "{X} rather than {y}.", "{X}; do not {y}.",
    "It is better to {x} than to {y}.", "Never {y}: {x}.", "You may want to {y}, but {x}.",
    "{X}, and do not {y}.", "Others {y}. You {x}.", "It is wrong to {y}; {x}.",
)  # fmt: skip
NEUTRAL = (
    "You are a {helpful|careful|kind|patient} {assistant|teacher|clerk|pupil}.",
    "Be {precise|careful|clear|polite|brief|friendly}.",
    "{This|It} is {important|a test|an exam|homework}.",
    "{Read|Check} the {problem|question|numbers} {carefully|with care|twice}.",
    "{Think|Take your time|Do your best}.",
    "The {answer|result} is a {whole number|number}.",
    "{Mathematics|Arithmetic} is {fun|easy|your subject}.",
    "{Many people|Your friends|The others} {like|need|ask for} {sums|problems|answers}.",
    "Put {only one number|one number} in the box.",
    "The numbers are {small|whole|given in the problem}.",
)

_PHRASES = {way: [expand(p) for p in patterns] for way, patterns in PHRASES.items()}
_NEUTRAL = [expand(p) for p in NEUTRAL]


@dataclass(frozen=True)
class Request:
    """A sentence and what it asks for.

    Attributes:
        way: the way that it asks for; "at once" if all it does is to forbid one; None if it asks for
            nothing.
    """

    text: str
    way: Way | None


def verb_phrase(rng: random.Random, way: Way) -> str:
    return rng.choice(rng.choice(_PHRASES[way]))


def neutral(rng: random.Random) -> str:
    return rng.choice(rng.choice(_NEUTRAL))


def request(rng: random.Random, way: Way) -> Request:
    """Draw a request for a way: plain, or in contrast to another way."""
    x = verb_phrase(rng, way)
    if rng.random() < 0.3:
        y = verb_phrase(rng, rng.choice([other for other in Way if other is not way]))
        return Request(_filled(rng.choice(CONTRASTED), x, y), way)
    return Request(_filled(rng.choice(FRAMES), x), way)


def forbidding(rng: random.Random) -> Request:
    """Draw a request that forbids a procedure and asks for nothing: the answer comes at once."""
    x = verb_phrase(rng, rng.choice((Way.TOGETHER, Way.ONE_BY_ONE)))
    return Request(_filled(rng.choice(NEGATED), x), Way.AT_ONCE)


def _filled(frame: str, x: str, y: str = "") -> str:
    return frame.format(x=x, X=x[0].upper() + x[1:], y=y)


def all_sentences() -> set[str]:
    """Return every plain and negated request and every neutral sentence (of contrasts there are too many)."""
    phrases = [p for patterns in _PHRASES.values() for options in patterns for p in options]
    framed = {_filled(frame, x) for frame in (*FRAMES, *NEGATED) for x in phrases}
    return framed | {s for options in _NEUTRAL for s in options}
