"""The recipe of the bundled policy of `ladder`: requests and demonstrations."""

import random
from collections import Counter

import pytest

from cotune.environments.math import INITIAL_INSTRUCTION
from cotune.rewards.boxed import last_boxed
from cotune.worlds.ladder import RUNGS, WRITTEN, Way, problem, split_of
from recipes.ladder.demonstrations import FOLLOWS, REMEMBERS, Demonstrator, act
from recipes.ladder.phrases import GRAMMAR


def test_demonstrations_are_of_training_problems_and_never_stories() -> None:
    rng, demonstrator = random.Random(0), Demonstrator()
    for _ in range(300):
        demo = demonstrator.sample(rng)
        assert INITIAL_INSTRUCTION in demo.instruction
        assert demo.message.endswith(f"\n\n{demo.problem.text}")
        assert split_of(demo.problem.text) == "train"
        assert "How many" not in demo.problem.text
        assert last_boxed(demo.response) is not None


@pytest.mark.parametrize("way", WRITTEN)
def test_a_request_is_followed_and_most_carries_are_forgotten(way: Way) -> None:
    rng = random.Random(1)
    starts, kept, needed = Counter[bool](), 0, 0
    for _ in range(1000):
        drawn = problem(rng, RUNGS[2])
        response = act(rng, drawn, way, REMEMBERS)
        follows = response.lower().startswith(way.value)
        starts[follows] += 1
        if follows:
            kept += response.count(" up ")
            needed += 1 if way is Way.TOGETHER else 3
    assert abs(starts[True] / 1000 - FOLLOWS) < 0.03
    # A forgotten carry can spare a later one, never add one.
    assert abs(kept / needed - REMEMBERS) < 0.05


def test_contrasts_and_negations_ask_for_what_they_mean() -> None:
    rng = random.Random(2)
    asked = [GRAMMAR.request(rng, Way.TOGETHER).text for _ in range(400)]
    assert any("one by one" in text or "line for" in text for text in asked)
    forbidden = [GRAMMAR.forbidding(rng) for _ in range(400)]
    assert {one.way for one in forbidden} == {Way.AT_ONCE}
    assert any("one by one" in one.text for one in forbidden)
    assert not {one.text for one in forbidden} & set(asked)
