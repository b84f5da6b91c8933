"""The offline rules for the world `scaffold`: which way of working a failed rollout calls for.

An answer without a search by hops calls for such searches, either way; hops that were searched once call for a
second search; hops that were searched twice call for one search each, which leaves turns for the next hop. The
rules do not know which of the two is better: verification has to find out.
"""

from enum import StrEnum

from cotune.worlds.rules_llm import Remedies, sentences_of
from cotune_lab.worlds.scaffold import INITIAL_INSTRUCTION, is_question


class Lack(StrEnum):
    """A lack that can be seen in a failed rollout; the value is the critique's wording."""

    CHECKS = "no second search that checks what a hop's first one found"
    TURNS = "no turns left, or many spent, as the same hop is searched again"


REMEDIES: dict[Lack, tuple[str, ...]] = {
    Lack.CHECKS: (
        "Search for each place twice.",
        "Look every name up, and search it a second time.",
        "Check every look-up by a second one.",
        "Do two searches of the same place before you go on.",
        "After a search, repeat it.",
        "Confirm what each hop gave with one more search.",
        "For every fact, make a pair of searches.",
        "Query each place again, as a check.",
        "Use a second query to verify the first, for every hop.",
        "Double every look-up of a place.",
    ),
    Lack.TURNS: (
        "Search for each place once.",
        "Look every name up in a single search, then take the next name.",
        "Go from one hop to the next, with one search for each.",
        "Use one search a hop.",
        "Search one place, then the place after it.",
        "A single look-up for each hop: then go on.",
        "For every fact, make just one search.",
        "Query each place one time, and move on.",
        "Trust the first result for a hop and search for the next.",
        "Take the places one after another, one search each.",
    ),
}
STYLE = (
    "Be a careful guide.",
    "A short answer is enough.",
    "Look at all the words.",
    "This is a question about places.",
    "Take time to read the question.",
    "The quiz is easy for you.",
    "Think, and be patient.",
    "All the places are real.",
    "Many people like this.",
    "Be clear and do your best.",
)
"""Sentences that ask for nothing."""
_INITIAL = frozenset(sentences_of(INITIAL_INSTRUCTION))


def knows(question: str) -> bool:
    """Return whether a question is one of this world's."""
    return is_question(question)


def owns(instruction: str) -> bool:
    """Return whether an instruction is made from this world's initial one."""
    return set(sentences_of(instruction)) >= _INITIAL


def lacks(response: str) -> list[Lack]:
    """Return what a failed response lacks."""
    if "Check: <search>" in response:
        return [Lack.TURNS]
    if "Find: <search>" in response:
        return [Lack.CHECKS]
    return list(Lack)


RULES = Remedies(REMEDIES, STYLE, lambda _question, response: lacks(response))
