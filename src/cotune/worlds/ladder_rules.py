"""The offline rules for the world `ladder`: which way of working a failed rollout calls for.

A failed answer without lines calls for any procedure; one with lines for either of the other two. Which
procedure is better, the rules do not know: that is for verification to find out.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum

_QUESTION = re.compile(r"\d \+ \d+ [+-] \d")


class Lack(StrEnum):
    """A lack that can be seen in a failed rollout; the value is the critique's wording."""

    FEWER_LINES = "many lines, one of which loses a carry"
    LINE_PER_NUMBER = "no line for each number"
    WRITTEN_ORDER = "another order than the problem's"


REMEDIES: dict[Lack, tuple[str, ...]] = {
    Lack.FEWER_LINES: (
        "Sum up two or three small numbers before you add them to the first.",
        "Put several small numbers into one group and add the group.",
        "Take the later numbers together in groups.",
        "Combine two or three of the numbers into a single sum.",
        "Bundle what is added, then add the bundles.",
        "Add several of the small numbers in one sum.",
        "Join the little numbers into groups first.",
        "Write one line for a group of numbers.",
        "Gather the small numbers and add them in bundles.",
        "First total two or three of the later numbers.",
    ),
    Lack.LINE_PER_NUMBER: (
        "Add the small numbers one after another, each in its own line.",
        "Write one line for every number that is added or taken away.",
        "Go from number to number, one at a time.",
        "Take each number by itself and note the result.",
        "Treat all numbers singly, line by line.",
        "Give each of the numbers a step of its own.",
        "Handle one number, write the result, then take the next number.",
        "Work through the numbers one by one and show each sum.",
        "Keep every number apart: one number, one line.",
        "Make a separate step for each single number.",
    ),
    Lack.WRITTEN_ORDER: (
        "Work through the signs from left to right.",
        "Keep the numbers in the order of the text.",
        "Do every plus and minus where it stands.",
        "Follow the signs in their order.",
        "Take away each loss at its place.",
        "Read from the left and add or subtract as you go.",
        "Let the written order be your order.",
        "Go up and down just as the signs come.",
        "Do not put off the subtractions; do them in order.",
        "Walk from the first sign to the last.",
    ),
}
STYLE = (
    "Be a careful pupil.",
    "The result is one whole number.",
    "Check all the numbers.",
    "This is a problem about numbers.",
    "Take time to read the problem.",
    "The problem is easy for you.",
    "Think, and be patient.",
    "All the numbers are given.",
    "Many pupils like this.",
    "Be clear and do your best.",
)
"""Sentences that ask for nothing."""
_LACK_OF = {sentence: lack for lack, options in REMEDIES.items() for sentence in options}
_DONE = (
    ("Together:", Lack.FEWER_LINES),
    ("One by one:", Lack.LINE_PER_NUMBER),
    ("In order:", Lack.WRITTEN_ORDER),
)
"""What a response has seen to, by its title."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def knows(question: str) -> bool:
    """Return whether a question is one of this world's."""
    return _QUESTION.search(question) is not None


def lacks(response: str) -> list[Lack]:
    """Return what a failed response lacks."""
    done = next((lack for title, lack in _DONE if title in response), None)
    return [lack for lack in Lack if lack is not done]


def reflect(
    parent: str, responses: Sequence[str], at_random: bool
) -> tuple[str, Callable[[random.Random], list[str]]]:
    """Return a critique, and a function that writes a candidate with one remedy, as sentences."""
    counts = Counter(lack for response in responses for lack in lacks(response))
    critique = "What went wrong:\n" + "\n".join(f"- {lack} ({n})" for lack, n in counts.items())
    if at_random:
        counts = Counter(list(Lack))
        critique = "Candidates with remedies at random; no example was read."

    def write(rng: random.Random) -> list[str]:
        lack = rng.choices(list(counts), list(counts.values()))[0]
        fresh = rng.choice([s for s in REMEDIES[lack] if s not in parent])
        return _with_remedy(parent, fresh, rng)

    return critique, write


def write_hint(current: str, responses: Sequence[str], rng: random.Random, at_random: bool) -> str:
    """Return a hint of one sentence."""
    options = list(Lack) if at_random else [lack for r in responses for lack in lacks(r)]
    return rng.choice([s for s in REMEDIES[rng.choice(options)] if s not in current])


def paraphrase(parent: str, rng: random.Random) -> list[str]:
    """Return the parent's sentences in another order with sentences that ask for nothing."""
    sentences = [s for s in _SENTENCE_END.split(parent) if s]
    fixed = [s for s in sentences if s not in STYLE]
    for _ in range(rng.choice((1, 1, 2))):
        fixed.insert(rng.choice((0, len(fixed))), rng.choice(STYLE))
    return list(dict.fromkeys(fixed))


def recombine(texts: Sequence[str], rng: random.Random) -> list[str]:
    """Return the first text's sentences with the remedy of any of the texts, and some of their style."""
    sentences = [[s for s in _SENTENCE_END.split(text) if s] for text in texts]
    remedies = [s for parts in sentences for s in parts if s in _LACK_OF]
    styles = [s for parts in sentences for s in parts if s in STYLE]
    fixed = [s for s in sentences[0] if s not in _LACK_OF and s not in STYLE]
    kept = rng.sample(styles, min(len(styles), rng.choice((0, 1, 2))))
    return _with_remedy(" ".join((*fixed, *kept)), rng.choice(remedies or [rng.choice(STYLE)]), rng)


def _with_remedy(parent: str, remedy: str, rng: random.Random) -> list[str]:
    """Return the parent's sentences with the remedy in place of an earlier one."""
    sentences = [s for s in _SENTENCE_END.split(parent) if s and s not in _LACK_OF]
    if sentences and rng.random() < 0.3:
        styles = [s for s in sentences if s in STYLE]
        if styles:
            sentences.remove(rng.choice(styles))
    sentences.insert(rng.choice((0, len(sentences))), remedy)
    return sentences
