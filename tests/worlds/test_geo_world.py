import random
import re

import pytest

from cotune.worlds.geo import GeoQuestion, GeoWorld, bundled_world, split_of

SPLITS = ("train", "validation", "test")
MIX = {1: 1.0, 2: 1.0, 3: 1.0}


@pytest.fixture(scope="module")
def world() -> GeoWorld:
    return bundled_world()[0]


@pytest.fixture(scope="module")
def sample(world: GeoWorld) -> list[GeoQuestion]:
    return [q for split in SPLITS for q in world.questions(300, split, MIX, seed=1)]


def test_sizes_and_titles(world: GeoWorld):
    assert len(world.countries) > 200
    assert len(world.cities) > 15_000
    assert len(world.documents) == len(world.titles)
    # One document a title, whatever the case: a searcher cannot tell "Split" from "split".
    assert len({title.casefold() for title in world.titles}) == len(world.titles)


def test_a_city_belongs_to_one_split_for_ever(world: GeoWorld):
    # Fixed values: a change here would move test cities into training.
    assert [split_of(city) for city in ("Oslo", "Zinder", "Wusu", "Lyon")] == [
        "test",
        "test",
        "train",
        "train",
    ]
    counts = [sum(split_of(city) == split for city in world.cities) for split in SPLITS]
    assert sum(counts) == len(world.cities)
    for count, share in zip(counts, (0.7, 0.1, 0.2), strict=True):
        assert abs(count / len(world.cities) - share) < 0.01


def test_questions_start_from_cities_of_their_split(world: GeoWorld):
    for split in SPLITS:
        starts = {q.chain[0].entity for q in world.questions(200, split, MIX, seed=3)}
        assert {split_of(city) for city in starts} == {split}


def test_same_seed_same_questions(world: GeoWorld):
    first = world.questions(50, "train", MIX, seed=7)
    assert GeoWorld().questions(50, "train", MIX, seed=7) == first
    assert world.questions(50, "train", MIX, seed=8) != first
    assert len({q.text for q in first}) == 50


def test_every_chain_is_answered_by_looking_its_entities_up(
    world: GeoWorld, sample: list[GeoQuestion]
):
    for question in sample:
        for hop in question.chain:
            document = world.document(hop.entity)
            shown = (
                f"in {hop.value}"
                if hop.attribute in ("country", "continent")
                else (f"{hop.attribute} {hop.value}")
            )
            assert re.search(rf"{re.escape(shown)}(,|\.$)", document), (shown, document)
        # Each look-up yields the entity of the next one.
        values = [hop.value for hop in question.chain]
        assert [hop.entity for hop in question.chain[1:]] == values[:-1]
        assert question.chain[0].entity in question.text
        assert question.answer == values[-1] != ""


def test_a_question_has_one_answer(world: GeoWorld):
    answers: dict[str, set[str]] = {}
    for seed in range(6):
        for question in world.questions(300, "train", MIX, seed):
            answers.setdefault(question.text, set()).add(question.answer)
    assert all(len(values) == 1 for values in answers.values())


def test_three_hops_never_return_to_their_start(sample: list[GeoQuestion]):
    three = [q for q in sample if q.hops == 3]
    assert len(three) > 200
    assert all(q.chain[0].entity != q.chain[2].entity for q in three)


def test_what_it_cannot_do_it_refuses(world: GeoWorld):
    with pytest.raises(ValueError, match="split is 'dev'; expected one of train"):
        world.question(random.Random(0), 1, "dev")
    with pytest.raises(ValueError, match="hops is 4"):
        world.question(random.Random(0), 4, "train")
