import random
import re
from collections import Counter

import pytest
from pydantic import TypeAdapter, ValidationError

from cotune.errors import ConfigError
from cotune.rewards.qa import normalize
from cotune.types import Action
from cotune_lab.worlds.geo import (
    INITIAL_INSTRUCTION,
    STRATA,
    GeoEnvironment,
    GeoOptions,
    GeoQuestion,
    GeoWorld,
    bundled_world,
    split_of,
)

SPLITS = ("train", "validation", "test")


@pytest.fixture(scope="module")
def env() -> GeoEnvironment:
    return GeoEnvironment()


@pytest.fixture(scope="module")
def world() -> GeoWorld:
    return bundled_world()[0]


def draw(world: GeoWorld, split: str, seed: int = 1) -> list[GeoQuestion]:
    rng = random.Random(seed)
    return [world.question(rng, rng.choice(tuple(STRATA)), split) for _ in range(300)]


# ---- facts and questions


def test_sizes_and_titles(world: GeoWorld):
    assert len(world.countries) > 200
    assert len(world.cities) > 15_000
    assert len(world.documents) == len(world.titles)
    # One document a title, whatever the case: a searcher cannot tell "Split" from "split".
    assert len({title.casefold() for title in world.titles}) == len(world.titles)


def test_a_city_belongs_to_one_split_for_ever(world: GeoWorld):
    # Fixed values: a change here would move test cities into training.
    cities = ("Oslo", "Zinder", "Wusu", "Lyon")
    assert [split_of(city) for city in cities] == ["test", "test", "train", "train"]
    counts = [sum(split_of(city) == split for city in world.cities) for split in SPLITS]
    assert sum(counts) == len(world.cities)
    for count, share in zip(counts, (0.7, 0.1, 0.2), strict=True):
        assert abs(count / len(world.cities) - share) < 0.01


@pytest.mark.parametrize("split", SPLITS)
def test_every_chain_is_answered_by_looking_its_entities_up(world: GeoWorld, split: str):
    questions = draw(world, split)
    assert {split_of(q.chain[0].entity) for q in questions} == {split}
    for question in questions:
        for hop in question.chain:
            is_place = hop.attribute in ("country", "continent")
            fact = f"in {hop.value}" if is_place else f"{hop.attribute} {hop.value}"
            document = world.document(hop.entity)
            assert re.search(rf"{re.escape(fact)}(,|\.$)", document), (fact, document)
        # Each look-up yields the entity of the next one.
        values = [hop.value for hop in question.chain]
        entities = [hop.entity for hop in question.chain]
        assert entities[1:] == values[:-1]
        assert entities[0] in question.text
        assert question.answer == values[-1] != ""
        assert question.hops < 3 or entities[0] != entities[2]


def test_a_question_has_one_answer(world: GeoWorld):
    answers: dict[str, set[str]] = {}
    for seed in range(6):
        for question in draw(world, "train", seed):
            answers.setdefault(question.text, set()).add(question.answer)
    assert all(len(values) == 1 for values in answers.values())


# ---- the environment


def test_sizes_and_strata(env: GeoEnvironment):
    assert env.initial_instruction == INITIAL_INSTRUCTION
    assert [len(env.tasks(split)) for split in SPLITS] == [2000, 150, 300]
    for split, each in (("validation", 50), ("test", 100)):
        assert Counter(t.stratum for t in env.tasks(split)) == dict.fromkeys(STRATA.values(), each)
        # Any prefix is mixed alike.
        assert set(Counter(t.stratum for t in env.tasks(split)[:30]).values()) == {10}
    drawn = Counter(t.stratum for t in env.tasks("train"))
    assert all(abs(drawn[name] - 2000 / 3) < 100 for name in STRATA.values())
    odd = GeoEnvironment(GeoOptions(train=1, validation=5, test=1))
    assert Counter(t.stratum for t in odd.tasks("validation")) == {
        "1 hop": 2,
        "2 hops": 2,
        "3 hops": 1,
    }


def test_splits_share_no_city_and_answers_score(env: GeoEnvironment):
    city = re.compile(r"(?:where |What is the [a-z ]+? of (?!the ))(.+?)(?: is)?\?$")
    for split in SPLITS:
        cities = [match[1] for t in env.tasks(split) if (match := city.search(t.question))]
        assert len(cities) == len(env.tasks(split))
        assert {split_of(name) for name in cities} == {split}
        assert all(normalize(answer) for task in env.tasks(split) for answer in task.answers)


def test_ids_are_stable(env: GeoEnvironment):
    assert GeoEnvironment(GeoOptions()).tasks("test") == env.tasks("test")
    smaller = {t.id: t for t in GeoEnvironment(GeoOptions(train=50)).tasks("train")}
    assert smaller.items() <= {t.id: t for t in env.tasks("train")}.items()
    ids = [t.id for split in SPLITS for t in env.tasks(split)]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"geo-(train|validation|test)-[0-9a-f]{12}", id) for id in ids)
    other = {t.id for t in GeoEnvironment(GeoOptions(seed=1)).tasks("test")}
    assert other != {t.id for t in env.tasks("test")}


def test_looking_an_entity_up(env: GeoEnvironment):
    task = env.tasks("train")[0]
    (response,) = env.respond([Action(task, (), "<search> Zinder </search>", last=False)])
    assert "(1) Zinder is a city in Niger, population " in response.observation
    assert response.observation.count("\n(") == 3


def test_more_questions_than_there_are_is_an_error():
    expected = r"environment.validation asks for more than the \d+ questions of [123] hops?"
    with pytest.raises(ConfigError, match=expected):
        GeoEnvironment(GeoOptions(train=1, validation=9_000))


def test_options_from_a_run_file():
    adapter = TypeAdapter(GeoOptions)
    assert adapter.validate_python({}) == GeoOptions()
    options = GeoOptions(train=2, seed=5)
    assert adapter.validate_json(adapter.dump_json(options)) == options
    for row, message in [
        ({"train": 0}, "environment.train is 0; expected 1 or more"),
        ({"hops": 2}, "hops"),
    ]:
        with pytest.raises(ValidationError, match=message):
            adapter.validate_python(row)


def test_the_world_is_built_once():
    assert bundled_world() is bundled_world()
