import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from cotune.errors import ConfigError
from cotune.rewards.qa import normalize
from cotune.types import Action, Task
from cotune.worlds.geo import (
    INITIAL_INSTRUCTION,
    STRATA,
    GeoEnvironment,
    GeoOptions,
    bundled_world,
    shares,
    split_of,
)

SPLITS = ("train", "validation", "test")


@pytest.fixture(scope="module")
def env() -> GeoEnvironment:
    return GeoEnvironment()


def test_the_instruction_is_the_worlds():
    assert GeoEnvironment(GeoOptions(train=1)).initial_instruction == INITIAL_INSTRUCTION


def test_sizes_and_strata(env: GeoEnvironment):
    assert [len(env.tasks(split)) for split in SPLITS] == [2000, 150, 300]
    for split, each in (("validation", 50), ("test", 100)):
        assert Counter(t.stratum for t in env.tasks(split)) == dict.fromkeys(STRATA.values(), each)
        # Any prefix is mixed alike.
        assert set(Counter(t.stratum for t in env.tasks(split)[:30]).values()) == {10}
    drawn = Counter(t.stratum for t in env.tasks("train"))
    assert all(abs(drawn[name] - 2000 / 3) < 100 for name in STRATA.values())


def test_splits_share_no_city(env: GeoEnvironment):
    def city(task: Task) -> str:
        found = re.search(r"where (.+) is\?$", task.question)
        found = found or re.fullmatch(r"What is the [a-z ]+? of (.+)\?", task.question)
        assert found is not None
        return found[1]

    for split in SPLITS:
        cities = [city(task) for task in env.tasks(split)]
        assert all(name in env.world.cities for name in cities)
        assert {split_of(name) for name in cities} == {split}


def test_ids_are_stable(env: GeoEnvironment):
    assert GeoEnvironment(GeoOptions()).tasks("test") == env.tasks("test")
    smaller = {t.id: t for t in GeoEnvironment(GeoOptions(train=50)).tasks("train")}
    known = {t.id: t for t in env.tasks("train")}
    assert smaller.items() <= known.items()
    ids = [t.id for split in SPLITS for t in env.tasks(split)]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"geo-(train|validation|test)-[0-9a-f]{12}", id) for id in ids)
    assert {t.id for t in GeoEnvironment(GeoOptions(seed=1)).tasks("test")} != {
        t.id for t in env.tasks("test")
    }


def test_every_answer_survives_normalisation_and_scores(env: GeoEnvironment):
    for split in SPLITS:
        assert all(normalize(answer) for task in env.tasks(split) for answer in task.answers)


def test_looking_an_entity_up(env: GeoEnvironment):
    task = env.tasks("train")[0]
    (response,) = env.respond([Action(task, (), "<search> Zinder </search>", last=False)])
    assert "(1) Zinder is a city in Niger, population " in response.observation
    assert response.observation.count("\n(") == 3


def test_more_questions_than_there_are_is_an_error(env: GeoEnvironment):
    with pytest.raises(
        ConfigError, match=r"environment.validation .* of [123] hops?; .* most \d+,"
    ):
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


def test_shares_by_hand():
    assert shares(10, {1: 1, 2: 1, 3: 1}) == {1: 4, 2: 3, 3: 3}
    # 2.5, 1.25 and 1.25 of 5: the whole parts leave one, which goes to the remainder 0.5.
    assert shares(5, {3: 1, 1: 2, 2: 1}) == {1: 3, 2: 1, 3: 1}
    assert shares(150, {1: 0.1, 2: 0.1, 3: 0.1}) == {1: 50, 2: 50, 3: 50}


@given(
    st.integers(1, 10_000),
    st.dictionaries(st.sampled_from([1, 2, 3]), st.floats(0.01, 100), min_size=1),
)
def test_shares_add_up_and_are_near_the_mix(count: int, mix: dict[int, float]):
    found = shares(count, mix)
    assert sum(found.values()) == count
    for hops, weight in mix.items():
        assert abs(found[hops] - count * weight / sum(mix.values())) < 1 + 1e-6


def test_the_world_is_built_once():
    assert bundled_world() is bundled_world()
