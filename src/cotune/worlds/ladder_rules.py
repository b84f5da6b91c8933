"""The offline rules for the world `ladder`: which way of working a failed rollout calls for.

A failed answer without lines calls for any procedure; one with lines calls for either of the other two. The
rules do not know which procedure is better: verification has to find out.
"""

import re
from enum import StrEnum

from cotune.worlds.remedies import Remedies

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
_DONE = (
    ("Together:", Lack.FEWER_LINES),
    ("One by one:", Lack.LINE_PER_NUMBER),
    ("In order:", Lack.WRITTEN_ORDER),
)
"""The lack that a response does not have, by its title."""


def knows(question: str) -> bool:
    """Return whether a question is one of this world's."""
    return _QUESTION.search(question) is not None


def lacks(response: str) -> list[Lack]:
    """Return what a failed response lacks."""
    done = next((lack for title, lack in _DONE if title in response), None)
    return [lack for lack in Lack if lack is not done]


RULES = Remedies(REMEDIES, STYLE, lambda _question, response: lacks(response))
