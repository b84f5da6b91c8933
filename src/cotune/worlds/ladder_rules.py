"""The offline rules for the world `ladder`: which way of working a failed rollout calls for.

A failed answer without lines calls for any procedure; one with lines calls for either of the other two. The
rules do not know which procedure is better: verification has to find out.
"""

import re
from collections.abc import Mapping, Sequence

from cotune.worlds.remedies import Remedies, read_sentences

_QUESTION = re.compile(r"\d \+ \d+ [+-] \d")
_SENTENCES = read_sentences("ladder")
REMEDIES: Mapping[str, Sequence[str]] = _SENTENCES["remedies"]
"""The sentences that remedy each lack, by the critique's wording of it."""
# The lack that a response does not have, by its title.
_REMEDIED = dict(zip(("Together:", "One by one:", "In order:"), REMEDIES, strict=True))


def knows(question: str) -> bool:
    """Return whether a question is one of this world's."""
    return _QUESTION.search(question) is not None


def lacks(response: str) -> list[str]:
    """Return what a failed response lacks."""
    remedied = next((lack for title, lack in _REMEDIED.items() if title in response), None)
    return [lack for lack in REMEDIES if lack != remedied]


RULES = Remedies(REMEDIES, _SENTENCES["style"], lambda _question, response: lacks(response))
