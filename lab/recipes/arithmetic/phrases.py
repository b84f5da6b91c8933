"""The requests that the bundled policy of `arithmetic` is trained to follow.

As in `recipes.geo.phrases`, none of them is one that the offline LLM writes
(`cotune_lab.worlds.geo_rules`) or stands in `bank.txt`, though they share words; tests hold the sets apart.
"""

import random
from collections import Counter
from enum import StrEnum

from recipes.requests import Grammar, Request


class Kind(StrEnum):
    """What a sentence asks for: the procedure of a kind of problem, an answer at once, or nothing."""

    ADDITION = "addition"
    SUBTRACTION = "subtraction"
    MULTIPLICATION = "multiplication"
    WORD_PROBLEM = "word problem"
    NEUTRAL = "neutral"
    AT_ONCE = "at once"


PROCEDURES = (Kind.ADDITION, Kind.SUBTRACTION, Kind.MULTIPLICATION, Kind.WORD_PROBLEM)
INITIAL = "Solve the problem. Put the final answer in \\boxed{}."

_ADD = "@{when you add|if you add|in an addition|in additions|for an addition|for a sum|for sums}"
_SUBTRACT = "@{when you subtract|if you take away|in a subtraction|in subtractions|for a subtraction|for a difference|for differences}"
_MULTIPLY = "@{when you multiply|if you multiply|in a multiplication|in multiplications|for a multiplication|for a product|for products}"
_STORY = "@{when a story is told|when things are counted|in a story|in stories|for a story|in a word problem|for word problems}"

VERBS: dict[Kind, tuple[str, ...]] = {
    Kind.ADDITION: (
        "{add|sum} {the columns|column by column|in columns|each column} {from the right|with carries|and carry}",
        f"{{write|show|note}} {{the columns|each column|every column|the carry|every carry|columns and carries}} {_ADD}",
        f"{{go|work}} {{column by column|from the right|in columns}} {{and carry|with carries}} {_ADD}",
        "{write|do} {an addition|additions|a sum} {in columns|with carries|with columns and carries}",
        f"{{line up|align}} {{the columns|the digits}} and carry {_ADD}",
        f"carry {{from column to column|to the next column|to the left}} {_ADD}",
    ),
    Kind.SUBTRACTION: (
        "{subtract|take away} {column by column|in columns|each column} {with borrowing|and borrow|with borrows}",
        f"{{borrow|write the borrow|show the borrow|write every borrow}} {{from the left|from the next column|where it is needed}} {_SUBTRACT}",
        f"{{go|work}} {{column by column|from the right|in columns}} {{with borrowing|with borrows}} {_SUBTRACT}",
        "{write|do} {a subtraction|subtractions|a difference} {with borrowing|with borrows}",
        f"{{borrow|borrow a ten}} {{when a digit is too small|for a digit that is too small}} {_SUBTRACT}",
        f"{{write|show|note}} {{the borrows|each borrow|what is borrowed}} {_SUBTRACT}",
    ),
    Kind.MULTIPLICATION: (
        "multiply {digit by digit|each digit|one digit at a time|every digit} {from the right|with carries|in turn}",
        f"{{go|work}} {{digit by digit|one digit at a time}} {{and carry|with every carry}} {_MULTIPLY}",
        f"{{multiply|take}} {{each|every}} digit {{by the number|alone}} {_MULTIPLY}",
        "{write|do} {a multiplication|multiplications|a product} {digit by digit|one digit at a time|in digits}",
        f"{{write|show|note}} {{each digit times the number|every digit times the number|the digits one at a time}} {_MULTIPLY}",
        f"{{take|use}} {{single digits|one digit after another}} {_MULTIPLY}",
    ),
    Kind.WORD_PROBLEM: (
        "solve {a story|stories|a word problem|word problems} {step by step|in two steps|one step at a time|in steps}",
        f"{{write|show|work out|note}} {{the first step|each step|both steps|the first result|the result of each step}} {_STORY}",
        "{write|do} {the first step|each step|the steps} of {a story|a word problem|word problems}",
        f"{{go|work}} {{step by step|in two steps|one step at a time}} {_STORY}",
        f"{{begin|start}} with {{the first step|a first step|the first result}} {_STORY}",
        "{take|do} {a story|a word problem} in {single steps|two steps}",
    ),
    Kind.AT_ONCE: (
        "{answer|reply} {at once|immediately|directly|in your head}",
        "give {only the answer|the answer only|no steps}",
        "write nothing but the {answer|result}",
        "{skip|leave out|drop} {the steps|all work|the working}",
    ),
}
"""Verb phrases by what they ask for."""
NOUNS: dict[Kind, tuple[str, ...]] = {
    Kind.ADDITION: (
        f"{{columns|carries|columns and carries|written columns|a carry in each column}} {_ADD}",
        "the {columns|carries|carry|columns and carries} of {a sum|an addition}",
    ),
    Kind.SUBTRACTION: (
        f"{{borrows|borrowing|columns and borrows|written borrows|a borrow in each column}} {_SUBTRACT}",
        "the {borrows|borrow|borrowing} of {a difference|a subtraction}",
    ),
    Kind.MULTIPLICATION: (
        f"{{single digits|one digit at a time|digit after digit|written digits}} {_MULTIPLY}",
        "the {single digits|digits one by one} of {a product|a multiplication}",
    ),
    Kind.WORD_PROBLEM: (
        f"{{two steps|single steps|a first step|both steps|written steps}} {_STORY}",
        "the {steps|first step|first result|result of each step} of {a story|a word problem}",
    ),
    Kind.AT_ONCE: (
        "{the answer|the result} {alone|at once|without steps}",
        "{no steps|no work}",
    ),
}
"""Noun phrases for the same."""
NEUTRAL = (
    "You are a {helpful|careful|kind} {assistant|teacher|clerk}.",
    "Be {precise|careful|clear|polite|brief}.",
    "{This|It} is {important|a test|an exam}.",
    "{Read|Check} the {problem|question|numbers} {carefully|with care|twice}.",
    "{Think|Take your time}.",
    "The {answer|result} is a {whole number|number}.",
    "{Mathematics|Arithmetic} is {fun|easy|your subject}.",
    "{Many people|Your friends|The others} {like|need|ask for} {sums|products|stories|answers|numbers}.",
    "{All numbers|The numbers|The digits|The columns of this page} are {small|whole|easy to read}.",
    "{A story|A sum|A difference|A product|A problem} is {easy|fun|a good test}.",
)
GRAMMAR = Grammar(VERBS, NOUNS, NEUTRAL, PROCEDURES, Kind.NEUTRAL)


def all_sentences() -> set[str]:
    """Return every sentence of the recipe, except contrasts, of which there are too many."""
    return GRAMMAR.all_sentences()


def sentence(rng: random.Random, kind: Kind) -> str:
    """Draw a sentence of a kind."""
    return GRAMMAR.neutral(rng) if kind is Kind.NEUTRAL else GRAMMAR.request(rng, kind).text


def sample_hint(
    rng: random.Random, about: Kind, prompted: float, elsewhere: float = 0.0
) -> tuple[str, Counter[Kind]]:
    """Draw a hint for a problem of a kind, or "", and count its sentences by what they ask for.

    A sentence that forbids a procedure asks for nothing: it counts as neutral.

    Args:
        prompted: the share of problems whose own procedure is asked for, mostly by itself, sometimes
            with up to three others. Half of the rest has no hint, the others hold nothing of use:
            half of these forbid the problem's own procedure.
        elsewhere: of the hints that are not empty and do not ask for the problem's own procedure, the
            share that is sure to ask for another kind's; the others do so in half of the cases.

    A contrast may forbid what another sentence of the hint asks for; both count as asked for.
    """
    asks_for_kind = rng.random() < prompted
    if not asks_for_kind and rng.random() < 0.5:
        return "", Counter()
    others = [kind for kind in PROCEDURES if kind is not about]
    kinds = [about] * (rng.choice((1, 1, 1, 2)) if asks_for_kind else 0)
    certain = not asks_for_kind and elsewhere > 0 and rng.random() < elsewhere
    kinds += rng.sample(others, rng.choices((0, 1, 2, 3), (0 if certain else 5, 3, 1, 1))[0])
    kinds += [Kind.NEUTRAL] * rng.choices((0, 1, 2), (6, 3, 1))[0]
    if rng.random() < 0.08:
        kinds.append(Kind.AT_ONCE)
    drawn = [Request(sentence(rng, kind), kind) for kind in kinds]
    if not asks_for_kind and rng.random() < 0.5:
        drawn.append(GRAMMAR.forbidding(rng, about))
    unnamed = [kind for kind in others if kind not in kinds]
    if unnamed and rng.random() < 0.15:
        drawn.append(GRAMMAR.forbidding(rng, rng.choice(unnamed)))
    rng.shuffle(drawn)
    return " ".join(request.text for request in drawn), Counter(request.way for request in drawn)
