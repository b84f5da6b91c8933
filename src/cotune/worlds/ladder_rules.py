"""The offline rules for the world `ladder`: which way of working a failed rollout calls for.

A failed answer without lines calls for any procedure; one with lines calls for either of the other two. The
rules do not know which procedure is better: verification has to find out.
"""

import re
from enum import StrEnum

from cotune.worlds.remedies import Remedies, read_sentences

_QUESTION = re.compile(r"\d \+ \d+ [+-] \d")


class Lack(StrEnum):
    """A lack that can be seen in a failed rollout; the value is the critique's wording."""

    FEWER_LINES = "many lines, one of which loses a carry"
    LINE_PER_NUMBER = "no line for each number"
    WRITTEN_ORDER = "another order than the problem's"


_SENTENCES = read_sentences("ladder")
REMEDIES = {Lack(lack): tuple(texts) for lack, texts in _SENTENCES["remedies"].items()}
STYLE: tuple[str, ...] = tuple(_SENTENCES["style"])
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
