"""The requests that the bundled policy of `ladder` is trained to follow.

A request is a verb phrase in a frame. Frames also negate and contrast, so that the words of a phrase do
not say what to do: "Add them one by one." and "Do not add them one by one." share them all. None of these
sentences stands in `bank.txt` or in the bank that ships with the world; a test holds them apart.
"""

import random
from dataclasses import dataclass

from cotune.worlds.ladder import WRITTEN, Way
from recipes.geo.phrases import expand

INITIAL = "Solve the problem. Put the final answer in \\boxed{}."


_SMALL = "{the small numbers|the later numbers|the little numbers|the numbers after the first|what is added|two or three numbers|several numbers}"
_EACH = "{each number|every number|each of them|each small number|every single number}"
_THEM = "{the numbers|the small numbers|all numbers|them}"
_SIGNS = "{plus and minus|the signs|all signs|additions and subtractions|gains and losses}"
_MINUS = "{what is taken away|each subtraction|every minus|a minus|the losses}"

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
    Way.IN_ORDER: (
        "{keep|follow|respect|hold} {the order|the given order|the written order|the order of the problem|the order of the signs}",
        "{work|go|read|move|count} {from left to right|from the left|in order|in the given order|from the first sign to the last}",
        f"{{take|do|handle|treat}} {_SIGNS} {{in order|as they come|as they stand|from left to right}}",
        "{add and subtract|add and take away|go up and down} {as you read|as written|in order|from left to right}",
        f"{{take|do|handle|subtract}} {_MINUS} {{at its place|as it comes|where it stands|in the given order}}",
        f"{{mix|alternate}} {_SIGNS} {{as the problem does|as they stand|as written}}",
        "{stay with|stick to|go by|obey} {the order|the written order|the order of the text|the sequence}",
        "{start|begin} {at the left|on the left|with the left} and {go|move|work} {to the right|right}",
    ),
    Way.AT_ONCE: (
        "{answer|reply} {at once|directly|immediately|straight away|without any steps}",
        "{give|write|say} {only the answer|the answer alone|the result alone|nothing but the result}",
        "{skip|leave out|drop} {the steps|the lines|all work|the working}",
        "{guess|do it in your head|say the first number that comes}",
    ),
}
NOUNS: dict[Way, tuple[str, ...]] = {
    Way.TOGETHER: (
        "{groups|bundles|sums} {of|from} {several numbers|two or three numbers|the small numbers}",
        "{one sum|a single sum|one line} for {several numbers|two or three numbers|a group}",
        "{groups|bundles|few lines|a sum of groups|numbers in groups}",
    ),
    Way.ONE_BY_ONE: (
        "{a line|one line|its own line|a step} for {each number|every number|every single number}",
        "{single numbers|single lines|single steps|many lines|separate steps}",
        "{one number|a number} {at a time|in each line|per line}",
    ),
    Way.IN_ORDER: (
        "{the order|the given order|the written order} of {the signs|the problem|the text|plus and minus}",
        "{the order from left to right|the way from left to right|a walk from left to right|the given sequence|the written sequence}",
        "{plus and minus|the signs|gains and losses} {in order|as they come|in the given order|in sequence}",
    ),
    Way.AT_ONCE: (
        "{the answer|the result} {alone|at once|without steps}",
        "{no lines|no steps|no work}",
    ),
}
"""Noun phrases for the same ways."""
FRAMES = (
    "{X}.", "Please {x}.", "Always {x}.", "You should {x}.", "You must {x}.", "It helps to {x}.",
    "It is best to {x}.", "Remember to {x}.", "Make sure to {x}.", "The trick is to {x}.",
    "First {x}, then answer.", "To solve it, {x}.", "A good plan is to {x}.", "Take care to {x}.",
    "I want you to {x}.", "The way to do this is to {x}.", "In every problem, {x}.", "Try to {x}.",
    "To {x} helps.", "What helps is to {x}.", "Yes, {x}.", "The numbers: {x}.", "Let us {x}.",
    "Here, {x}.", "Next time and now, {x}.", "{X}: that is the way.",
)  # fmt: skip
NOUN_FRAMES = (
    "Use {n}.", "Write {n}.", "You need {n}.", "The way is {n}.", "{N}: that helps.", "It needs {n}.",
    "{N}, please.", "I want {n}.", "The right thing is {n}.", "Work with {n}.",
)  # fmt: skip
NEGATED = (
    "Do not {x}.", "Never {x}.", "You need not {x}.", "There is no need to {x}.", "It is wrong to {x}.",
    "It does not help to {x}.", "Please do not {x}.", "You must not {x}.", "You should never {x}.",
    "It is a mistake to {x}.", "Do not ever {x}.", "To {x} would be wrong.", "{X}? No.",
    "Nobody should {x}.", "What you must not do is to {x}.", "It never helps to {x}.",
    "I do not want you to {x}.", "The mistake is to {x}.", "Here you do not {x}.", "Not once should you {x}.",
)  # fmt: skip
NOUNS_NEGATED = (
    "Do not use {n}.", "Never write {n}.", "You do not need {n}.", "{N} would be wrong.", "{N}? No.",
    "Not {n}.", "{N} should not be used.", "I do not want {n}.", "Without {n}.", "{N} does not help.",
)  # fmt: skip
CONTRASTED = (
    "Do not {y}, but {x}.", "Rather than {y}, {x}.", "{X} rather than {y}.", "{X}; do not {y}.",
    "It is better to {x} than to {y}.", "Never {y}: {x}.", "You may want to {y}, but {x}.",
    "{X}, and do not {y}.", "Others {y}. You {x}.", "It is wrong to {y}; {x}.",
)  # fmt: skip
NOUNS_CONTRASTED = (
    "{N}, not {m}.", "Not {m}, but {n}.", "Use {n}, never {m}.", "{N} rather than {m}.",
    "In place of {m}, write {n}.", "{M} would be wrong: use {n}.",
)  # fmt: skip
NEUTRAL = (
    "You are a {helpful|careful|kind|patient} {assistant|teacher|clerk|pupil}.",
    "Be {precise|careful|clear|polite|brief|friendly|patient}.",
    "{This|It} is {important|a test|an exam|homework|an easy one|for your friends}.",
    "{Read|Check|Look at} the {problem|question|numbers|answer} {carefully|with care|twice|again}.",
    "{Think|Take your time|Do your best|Be quick|Stay calm}.",
    "The {answer|result} is {a whole number|a number|one number|never a word}.",
    "{Mathematics|Arithmetic} is {fun|easy|your subject|for everybody}.",
    "{Many people|Your friends|The others|Some pupils} {like|need|ask for|love} {sums|problems|answers|numbers|groups of friends}.",
    "Put {only one number|one number} in the box.",
    "{All numbers|The numbers|The small numbers|The first number and the others} are {small|whole|given in the problem|easy to read}.",
    "{Somebody|A teacher|A friend} {wrote|needs|reads} {this|the problem|the numbers}.",
    "There {are several numbers|is one number after another|is a first number} in {the problem|every problem}.",
    "{You can do this|This is easy|It is about numbers|Nothing else is needed}.",
)

_PHRASES = {way: [expand(p) for p in patterns] for way, patterns in PHRASES.items()}
_NOUNS = {way: [expand(p) for p in patterns] for way, patterns in NOUNS.items()}
_NEUTRAL = [expand(p) for p in NEUTRAL]
_OF_NOUNS = 0.25
"""Share of the requests that are built from noun phrases."""


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


def noun_phrase(rng: random.Random, way: Way) -> str:
    return rng.choice(rng.choice(_NOUNS[way]))


def request(rng: random.Random, way: Way) -> Request:
    """Draw a request for a way: plain, or in contrast to another way."""
    other = rng.choice([other for other in Way if other is not way])
    contrasts = rng.random() < 0.3
    if rng.random() < _OF_NOUNS:
        frames = NOUNS_CONTRASTED if contrasts else NOUN_FRAMES
        text = _filled(rng.choice(frames), n=noun_phrase(rng, way), m=noun_phrase(rng, other))
    else:
        frames = CONTRASTED if contrasts else FRAMES
        text = _filled(rng.choice(frames), x=verb_phrase(rng, way), y=verb_phrase(rng, other))
    return Request(text, way)


def forbidding(rng: random.Random) -> Request:
    """Draw a request that forbids a procedure and asks for nothing: the answer comes at once."""
    way = rng.choice(WRITTEN)
    if rng.random() < _OF_NOUNS:
        return Request(_filled(rng.choice(NOUNS_NEGATED), n=noun_phrase(rng, way)), Way.AT_ONCE)
    return Request(_filled(rng.choice(NEGATED), x=verb_phrase(rng, way)), Way.AT_ONCE)


def _filled(frame: str, **phrases: str) -> str:
    """Fill a frame's {x}, {y}, {n} and {m}; a capital one begins the sentence."""
    capitals = {name.upper(): text[0].upper() + text[1:] for name, text in phrases.items()}
    return frame.format(**phrases, **capitals)


def all_sentences() -> set[str]:
    """Return every plain and negated request and every neutral sentence (of contrasts there are too many)."""
    phrases = [p for patterns in _PHRASES.values() for options in patterns for p in options]
    nouns = [p for patterns in _NOUNS.values() for options in patterns for p in options]
    framed = {_filled(frame, x=x) for frame in (*FRAMES, *NEGATED) for x in phrases}
    framed |= {_filled(frame, n=n) for frame in (*NOUN_FRAMES, *NOUNS_NEGATED) for n in nouns}
    return framed | {s for options in _NEUTRAL for s in options}
