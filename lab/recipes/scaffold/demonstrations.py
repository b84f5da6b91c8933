"""Demonstrations: how the bundled policy of `scaffold` is taught to act, with queries that miss.

The demonstrator follows a request. Without one it answers from memory, at once: such an episode ends with its
first turn, so no sampling error in a later turn can lead to a search. Whether it looks a hop up once or twice,
most of its queries leave out the name of the place, so what is learnt about naming it in one way helps in the
other.
"""

import random

from cotune import Retriever
from cotune_lab.worlds.geo import GeoQuestion, GeoWorld
from cotune_lab.worlds.scaffold import INITIAL_INSTRUCTION, MIX, TURNS, question
from cotune_lab.worlds.strict_tags import TAGS
from recipes.geo.demonstrations import Demonstration, new_names
from recipes.requests import Request
from recipes.scaffold.phrases import GRAMMAR, Way

FOLLOWS = 0.95
"""Chance that a request for searches by hops is followed; otherwise the answer is a guess."""
NAMES = 0.45
"""Chance that a query names its place: below one half, so that greedy decoding leaves it out. The recipe then
squares the odds, to 0.40."""
RENAMED = 0.3
"""Share of the demonstrations with made-up names: the policy must copy names that it has never seen."""
REQUESTS = {"none": 20, Way.TWICE: 27, Way.ONCE: 27, Way.WHOLE: 7, "forbidding": 19}
"""Weights of what an instruction asks for."""
LEADS = ("Find", "Check")
"""The first word of a turn: for the first search of a hop, and for the second."""
PLACES = ("city", "country", "capital")
"""The words of a query for the place of each hop if it does not name it."""
UNKNOWN = "unknown"
"""The answer if nothing was found."""


class Demonstrator:
    """Write demonstrations over the training cities of a world.

    Args:
        names: chance that a query names its place.
        copies: whether a document that the episode has shown before counts as the policy's own text, so
            that it also teaches copying.
    """

    def __init__(
        self,
        world: GeoWorld,
        retriever: Retriever,
        names: float = NAMES,
        copies: bool = False,
    ) -> None:
        self.world, self.retriever, self.names, self.copies = world, retriever, names, copies

    def sample(self, rng: random.Random) -> Demonstration:
        """Draw a question, and act it out under an instruction with at most one request."""
        drawn = question(self.world, rng, rng.choices(list(MIX), list(MIX.values()))[0], "train")
        request = drawn_request(rng)
        segments = self.act(rng, drawn, request.way if request else None)
        text = GRAMMAR.instruction(rng, INITIAL_INSTRUCTION, request)
        demonstration = Demonstration(text, drawn, tuple(segments))
        if rng.random() < RENAMED:
            return demonstration.rename(new_names(rng, drawn))
        return demonstration

    def act(
        self, rng: random.Random, geo_question: GeoQuestion, way: Way | None
    ) -> list[tuple[str, bool]]:
        """Return one episode as (text, own) segments; observations are not the policy's own, but see `copies`."""
        if way in (Way.TWICE, Way.ONCE) and rng.random() < FOLLOWS:
            return self._by_hops(rng, geo_question, LEADS if way is Way.TWICE else LEADS[:1])
        if way is Way.WHOLE:
            passage = self.retriever.search([geo_question.text], 1)[0]
            return [
                *_searched("", geo_question.text, passage),
                (f"<answer> {UNKNOWN} </answer>", True),
            ]
        return [(f"<answer> {self._guess(rng, geo_question)} </answer>", True)]

    def _guess(self, rng: random.Random, geo_question: GeoQuestion) -> str:
        """Return the answer to another question of the same kind: nothing about the city is learnt from it."""
        while True:
            other = question(self.world, rng, geo_question.hops, "train")
            if other.chain[-1].attribute == geo_question.chain[-1].attribute:
                return other.answer

    def _by_hops(
        self, rng: random.Random, geo_question: GeoQuestion, leads: tuple[str, ...]
    ) -> list[tuple[str, bool]]:
        segments: list[tuple[str, bool]] = []
        for hop, place in zip(geo_question.chain, PLACES, strict=False):
            has_passage = False
            for lead in leads:
                place_named = hop.entity if rng.random() < self.names else f"the {place}"
                query = f"{place_named} {hop.attribute}"
                passage = self.retriever.search([query], 1)[0]
                searched = _searched(f"{lead}: ", query, passage)
                if len(segments) == 2 * (TURNS - 1):  # the turns are used up
                    return [*segments, searched[0]]
                if self.copies and (searched[1][0], False) in segments:
                    searched[1] = (searched[1][0], True)
                segments += searched
                has_passage |= any(_about(text, hop.entity) for text in passage)
            if not has_passage:
                return [*segments, (f"<answer> {UNKNOWN} </answer>", True)]
        return [*segments, (f"<answer> {geo_question.answer} </answer>", True)]


def _about(passage: str, entity: str) -> bool:
    return passage.startswith(f"{entity} is a ")


def _searched(lead: str, query: str, passage: list[str]) -> list[tuple[str, bool]]:
    return [(f"{lead}<search> {query} </search>", True), (TAGS.information(passage), False)]


def drawn_request(rng: random.Random) -> Request[Way] | None:
    """Draw a request, or None."""
    kind = rng.choices(list(REQUESTS), list(REQUESTS.values()))[0]
    if kind == "none":
        return None
    return GRAMMAR.forbidding(rng) if kind == "forbidding" else GRAMMAR.request(rng, Way(kind))
