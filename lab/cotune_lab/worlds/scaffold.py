"""The world `scaffold`: look-ups in several hops, on which the best instruction changes.

The facts, documents and index are those of `geo`; a question names a city and asks for something one, two
or three look-ups away. An episode has five turns: at most four searches, and the answer. There are three
ways to answer:

    no search         an answer from memory, right only by chance
    twice             every hop is looked up, then checked by a second search: two hops fill the turns
    once              every hop is looked up by one search: three hops fit

The bundled policy leaves the name of the place out of most of its queries, and such a query finds nothing
useful. A second search makes up for that, so "twice" is better at first; once the names are learnt, "once" is.
"""

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from cotune import Action, Response, SearchEnvironment, Task
from cotune.data.splits import digest
from cotune.environments.registry import EnvironmentKind
from cotune.rewards.qa import exact_match
from cotune.worlds.ladder import different
from cotune_lab.worlds.content_splits import check_counts
from cotune_lab.worlds.geo import (
    STRATA,
    GeoQuestion,
    GeoWorld,
    bundled_world,
    interleaved,
)
from cotune_lab.worlds.strict_tags import TAGS

INITIAL_INSTRUCTION = (
    "Answer the question. Search by <search> query </search>. Put the answer inside <answer> and "
    "</answer>."
)
TURNS = 5
"""Turns of an episode: four searches and the answer."""
MIX = {1: 5.0, 2: 7.0, 3: 8.0}
"""Weights of the numbers of hops."""
_TRIES = 5000  # draws of one question before a stratum counts as exhausted
_QUESTION = re.compile(r"^[^:?\n]+: what is the [^?\n]+\?$")


def question_text(question: GeoQuestion) -> str:
    """Return the question's text, from the city outwards."""
    city, key = question.chain[0].entity, question.chain[-1].attribute
    place = ("", " of its country", " of the capital of its country")[question.hops - 1]
    return f"{city}: what is the {key}{place}?"


def is_question(text: str) -> bool:
    """Return whether a text is worded as this world's questions are."""
    return _QUESTION.match(text.strip()) is not None


def question(world: GeoWorld, rng: random.Random, hops: int, split: str) -> GeoQuestion:
    """Draw a question of `hops` look-ups about a city of the split.

    Questions of two and three hops are left out if their answer can be read or inferred from the document
    about the city: they would need only one look-up.
    """
    while True:
        drawn = world.question(rng, hops, split)
        in_document = drawn.answer in world.document(drawn.chain[0].entity)
        if hops == 1 or not (in_document or drawn.chain[-1].attribute == "continent"):
            return GeoQuestion(question_text(drawn), drawn.chain)


@dataclass(frozen=True, kw_only=True)
class ScaffoldOptions:
    """The questions of the world that a run uses.

    Attributes:
        train, validation, test: numbers of questions; each holds counts in proportion to `MIX`. Their
            cities are disjoint.
        seed: other questions for another seed; the cities of each split stay the same.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: Literal["scaffold"] = "scaffold"
    train: int = 480
    validation: int = 100
    test: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "train", "validation", "test")


class ScaffoldEnvironment(SearchEnvironment):
    """The world's questions over the tag protocol; the fifth turn is an episode's last.

    Raises:
        ConfigError: a split asks for more distinct questions than there are.
    """

    protocol = TAGS

    def __init__(self, options: ScaffoldOptions | None = None) -> None:
        options = options or ScaffoldOptions()
        self.world, retriever = bundled_world()
        tasks = {
            split: _drawn(self.world, options, split, getattr(options, split))
            for split in ("train", "validation", "test")
        }
        super().__init__(
            tasks,
            retriever,
            INITIAL_INSTRUCTION,
            exact_match,
            top_k=1,
        )
        self.description = ""  # the offline rules propose here, and need none

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        """Respond as `SearchEnvironment` does, but to the fifth turn as to the last."""
        return super().respond(
            [replace(a, last=a.last or len(a.turns) >= TURNS - 1) for a in actions]
        )


environment = EnvironmentKind(
    options=ScaffoldOptions,
    build=lambda options, tasks: ScaffoldEnvironment(options),
)


def shares(count: int, mix: Mapping[int, float]) -> dict[int, int]:
    """Split `count` in proportion to `mix`, by largest remainder; ties go to fewer hops.

    >>> shares(10, {1: 1, 2: 1, 3: 1})
    {1: 4, 2: 3, 3: 3}
    """
    total = sum(mix.values())
    exact = {hops: count * weight / total for hops, weight in sorted(mix.items())}
    whole = {hops: math.floor(share) for hops, share in exact.items()}
    # sorted() is stable: equal remainders keep the order of hops.
    by_remainder = sorted(exact, key=lambda hops: whole[hops] - exact[hops])
    for hops in by_remainder[: count - sum(whole.values())]:
        whole[hops] += 1
    return whole


def _drawn(world: GeoWorld, options: ScaffoldOptions, split: str, count: int) -> list[Task]:
    """Return tasks with exact counts by hops; every prefix has about the same mix."""
    drawn: list[list[Task]] = []
    for hops, n in shares(count, MIX).items():
        rows = _endless(world, options, split, hops)
        drawn.append([next(rows) for _ in range(n)])
    return interleaved(drawn)


def _endless(world: GeoWorld, options: ScaffoldOptions, split: str, hops: int) -> Iterator[Task]:
    """Yield different questions of a number of hops in a split."""
    rng = random.Random(f"scaffold/{options.seed}/{split}/{hops}")

    def draw() -> Task:
        drawn = question(world, rng, hops, split)
        id = f"scaffold-{split}-{digest(drawn.text)}"
        return Task(id, drawn.text, (drawn.answer,), STRATA[hops])

    return different(draw, _TRIES, split, f"questions of {STRATA[hops]}")
