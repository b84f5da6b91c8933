"""The offline rules for the world `ladder`: which way of working a failed rollout calls for.

A failed answer without lines calls for any procedure; one with lines calls for either of the other two. The
rules do not know which procedure is better: verification has to find out.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cotune.worlds.remedies import Remedies, read_sentences

_SENTENCES = read_sentences(Path(__file__).with_name("ladder_sentences.yaml"))
REMEDIES: Mapping[str, Sequence[str]] = _SENTENCES["remedies"]
"""The sentences that remedy each lack, by the critique's wording of it."""
# The lack that a response does not have, by its title.
_REMEDIED = dict(zip(("Together:", "One by one:", "In order:"), REMEDIES, strict=True))


def lacks(response: str) -> list[str]:
    """Return what a failed response lacks."""
    remedied = next((lack for title, lack in _REMEDIED.items() if title in response), None)
    return [lack for lack in REMEDIES if lack != remedied]


RULES = Remedies(REMEDIES, _SENTENCES["style"], lambda _question, response: lacks(response))
