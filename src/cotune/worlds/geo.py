"""The bundled world `geo` as an environment: questions of one to three hops, searched by BM25."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from cotune.environments.search import ANSWER_INSTRUCTION, SearchEnvironment
from cotune.errors import ConfigError
from cotune.rewards import exact_match
from cotune.types import Task

if TYPE_CHECKING:
    from cotune.retrieval.bm25 import BM25Retriever
    from cotune.worlds.geo_world import GeoQuestion, GeoWorld

INITIAL_INSTRUCTION = (
    "Answer the given question. You may think inside <think> and </think>. You can call a search "
    "engine by <search> query </search>. It returns the top results between <information> and "
    "</information>. You can search as many times as you want. Give the answer inside <answer> and "
    "</answer>, for example <answer> Beijing </answer>."
)
"""Search-R1's instruction, shortened; it says nothing of searching one entity at a time."""

STRATA = {1: "1 hop", 2: "2 hops", 3: "3 hops"}


@dataclass(frozen=True, kw_only=True)
class GeoOptions:
    """Which questions of the world a run uses.

    Attributes:
        train, validation, test: numbers of questions. Their cities are disjoint.
        mix: the weight of each number of hops. Training questions are drawn by it; validation and
            test hold counts in proportion to it, so that a table's rows are of known size.
        seed: other questions for another seed, over the same cities of each split.
        top_k: passages of an observation.
        search: false takes the search engine away: a `<search>` is no action, and an instruction
            needs the answer's tags alone (GRPO without tools).
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: Literal["geo"] = "geo"
    train: int = 2000
    validation: int = 150
    test: int = 300
    mix: dict[int, float] = field(default_factory=lambda: dict.fromkeys(STRATA, 1.0))
    seed: int = 0
    top_k: int = 3
    search: bool = True

    def __post_init__(self) -> None:
        for name in ("train", "validation", "test", "top_k"):
            if getattr(self, name) < 1:
                raise ValueError(f"environment.{name} is {getattr(self, name)}; expected 1 or more")
        weights = self.mix.values()
        if not self.mix.keys() <= STRATA.keys():
            raise ValueError(f"environment.mix is {self.mix}; expected hops 1, 2 or 3 as its keys")
        if not all(math.isfinite(w) and w >= 0 for w in weights) or sum(weights) <= 0:
            raise ValueError(
                f"environment.mix is {self.mix}; expected weights of 0 or more, not all of them 0"
            )


class GeoEnvironment(SearchEnvironment):
    """The world's questions, asked over the tag protocol and scored by exact match.

    Raises:
        ConfigError: a split is to hold more questions than its cities give.
    """

    def __init__(self, options: GeoOptions | None = None) -> None:
        options = options or GeoOptions()
        self.world, retriever = bundled_world()
        tasks = {
            "train": _drawn(self.world, options),
            "validation": _stratified(self.world, options, "validation", options.validation),
            "test": _stratified(self.world, options, "test", options.test),
        }
        super().__init__(
            tasks,
            retriever if options.search else None,
            INITIAL_INSTRUCTION if options.search else ANSWER_INSTRUCTION,
            exact_match,
            options.top_k,
        )
        self.description = ""  # the offline rules propose here; they read INSPO's prompts alone


@cache
def bundled_world() -> "tuple[GeoWorld, BM25Retriever]":
    """The world and the index of its documents; built once a process, in about a second."""
    # Imported here so that reading a run file loads neither the index library nor the facts.
    from cotune.retrieval.bm25 import BM25Retriever
    from cotune.worlds.geo_world import GeoWorld

    world = GeoWorld()
    return world, BM25Retriever(world.documents, world.indexed())


def shares(count: int, mix: Mapping[int, float]) -> dict[int, int]:
    """`count` split in proportion to `mix`, by largest remainder; ties go to fewer hops.

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


def capacity(world: "GeoWorld", split: str) -> dict[int, int]:
    """How many different questions of each number of hops a split's cities give."""
    from cotune.worlds.geo_world import split_of

    found = dict.fromkeys(STRATA, 0)
    for city, facts in world.cities.items():
        if split_of(city) != split:
            continue
        country = world.countries[facts["country"]]
        capital = country.get("capital", "")
        found[1] += 3
        found[2] += len(country)
        found[3] += 2 * (capital in world.cities and capital != city)
    return found


def _drawn(world: "GeoWorld", options: GeoOptions) -> list[Task]:
    """The training tasks, drawn by the mix."""
    mix = {hops: weight for hops, weight in sorted(options.mix.items()) if weight > 0}
    room = capacity(world, "train")
    _check(options.train, sum(room[hops] for hops in mix), "train", "")
    questions = world.questions(options.train, "train", mix, options.seed)
    return [_task(question, "train") for question in questions]


def _stratified(world: "GeoWorld", options: GeoOptions, split: str, count: int) -> list[Task]:
    """Tasks with exact counts by hops, interleaved so that any prefix is mixed alike."""
    room = capacity(world, split)
    placed: list[tuple[float, int, Task]] = []
    for hops, n in shares(count, options.mix).items():
        _check(n, room[hops], split, f" of {STRATA[hops]}")
        # A seed of its own: with a shared one the strata would go through the same cities.
        questions = world.questions(n, split, {hops: 1.0}, 4 * options.seed + hops)
        placed += [((i + 0.5) / n, hops, _task(q, split)) for i, q in enumerate(questions)]
    return [task for _, _, task in sorted(placed, key=lambda row: row[:2])]


def _task(question: "GeoQuestion", split: str) -> Task:
    digest = hashlib.sha1(question.text.encode()).hexdigest()[:12]
    id = f"geo-{split}-{digest}"
    return Task(id, question.text, (question.answer,), STRATA[question.hops])


def _check(asked: int, room: int, split: str, stratum: str) -> None:
    if asked > room:
        raise ConfigError(
            f"environment.{split} asks for {asked} questions{stratum}; expected at most {room}, "
            "all that its cities give; lower it or change environment.mix"
        )
