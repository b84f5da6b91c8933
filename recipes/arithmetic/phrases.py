"""The sentences that the bundled policy of `arithmetic` is trained to react to.

As in `recipes.geo.phrases`, none of them is one that the offline LLM writes
(`cotune.worlds.rules_llm`), though the two share their words; a test holds the sets apart.
"""

import random
from collections import Counter
from enum import StrEnum

from recipes.geo.phrases import expand


class Kind(StrEnum):
    """The subject of a sentence: the procedure of a kind of problem, or nothing in particular."""

    ADDITION = "addition"
    SUBTRACTION = "subtraction"
    MULTIPLICATION = "multiplication"
    WORD_PROBLEM = "word problem"
    NEUTRAL = "neutral"
    AT_ONCE = "at once"


PROCEDURES = (Kind.ADDITION, Kind.SUBTRACTION, Kind.MULTIPLICATION, Kind.WORD_PROBLEM)
INITIAL = "Solve the problem. Put the final answer in \\boxed{}."

PATTERNS: dict[Kind, tuple[str, ...]] = {
    Kind.ADDITION: (
        "{Add|Sum} {the columns|column by column|each column} {from the right|with carries|and carry}.",
        "{For|In} {an addition|additions|a sum|sums}, write {the columns|each column|every column} and the carry.",
        "When you add, {go|work} {column by column|from the right} and carry.",
        "Write {an addition|additions|a sum|sums} in columns{| with carries}.",
        "{Additions|Sums} {need|go by} columns {and|with} carries.",
        "To add, {write|line up} {each|every} column {first|from the right}.",
    ),
    Kind.SUBTRACTION: (
        "{Subtract|Take away} {column by column|each column} {with borrowing|and borrow}.",
        "{For|In} {a subtraction|subtractions|a difference|differences}, {borrow|write each borrow} {from the left|from the next column|where needed}.",
        "When you subtract, {borrow|write the borrow} {from the left|from the next column|where needed}.",
        "Write {a subtraction|subtractions|a difference|differences} with borrowing.",
        "{Subtractions|Differences} {need|go by} {borrowing|borrows}{| in columns}.",
        "To subtract, {write|show} {each|every} borrow{| first}.",
    ),
    Kind.MULTIPLICATION: (
        "Multiply {digit by digit|each digit|one digit at a time} {from the right|and carry|with carries}.",
        "{For|In} {a multiplication|multiplications|a product|products}, {multiply|take} {each|every} digit {by the number|and carry}.",
        "When you multiply, go {digit by digit|one digit at a time} {from the right|and carry}.",
        "Write {a multiplication|multiplications|a product|products} {digit by digit|one digit at a time}.",
        "{Multiplications|Products} {need|go by} {single digits|one digit at a time}{| with carries}.",
        "To multiply, {write|show} {each|every} digit times the number{| first}.",
    ),
    Kind.WORD_PROBLEM: (
        "Solve {a story|stories|a word problem|word problems} {step by step|in two steps|one step at a time}.",
        "{For|In} {a story|stories|a word problem|word problems}, {write|show} {the first step|each step|both steps}.",
        "When {a story is told|things are counted|there are two steps}, {write|work out} {the first step|each step}{| first}.",
        "Write {the first result|the result of each step|each step} of {a story|a word problem|word problems}.",
        "{Stories|Word problems} {need|go by} {two steps|first steps|single steps}.",
        "To count {things|apples and such|what is left}, {write|show} {each|every} step{| first}.",
    ),
    Kind.NEUTRAL: (
        "You are a {helpful|careful|kind} {assistant|teacher|clerk}.",
        "Be {precise|careful|clear|polite|brief}.",
        "{This|It} is {important|a test|an exam}.",
        "{Read|Check} the {problem|question|numbers} {carefully|with care|twice}.",
        "{Think|Take your time}.",
        "The {answer|result} is a {whole number|number}.",
        "{Mathematics|Arithmetic} is {fun|easy|your subject}.",
    ),
    Kind.AT_ONCE: (
        "{Answer|Reply} {at once|immediately|directly}.",
        "Give {only the answer|the answer only|no steps}.",
        "Write nothing but the {answer|result}.",
    ),
}

SENTENCES: dict[Kind, tuple[tuple[str, ...], ...]] = {
    kind: tuple(tuple(expand(p)) for p in patterns) for kind, patterns in PATTERNS.items()
}
"""By kind, then by pattern."""


def all_sentences() -> set[str]:
    """Return every sentence of the recipe."""
    return {s for patterns in SENTENCES.values() for options in patterns for s in options}


def sentence(rng: random.Random, kind: Kind) -> str:
    return rng.choice(rng.choice(SENTENCES[kind]))


def sample_hint(rng: random.Random, about: Kind, prompted: float) -> tuple[str, Counter[Kind]]:
    """Draw a hint for a problem of a kind, or "", and count its sentences of each kind.

    Args:
        prompted: the share of problems whose own procedure is asked for, mostly alone, at times
            with up to three others. Half of the rest has no hint, the others hold nothing of use.
    """
    kinds = list[Kind]()
    if rng.random() < prompted:
        kinds += [about] * rng.choice((1, 1, 1, 2))
    elif rng.random() < 0.5:
        return "", Counter()
    others = [kind for kind in PROCEDURES if kind is not about]
    kinds += rng.sample(others, rng.choices((0, 1, 2, 3), (5, 3, 1, 1))[0])
    kinds += [Kind.NEUTRAL] * rng.choices((0, 1, 2), (6, 3, 1))[0]
    if rng.random() < 0.08:
        kinds.append(Kind.AT_ONCE)
    written = list(dict.fromkeys((kind, sentence(rng, kind)) for kind in kinds))
    rng.shuffle(written)
    return " ".join(text for _, text in written), Counter(kind for kind, _ in written)
