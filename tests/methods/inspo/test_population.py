import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.methods.inspo.population import Population
from cotune.methods.method import too_close_to_call
from cotune.types import Instruction


def population(*weights: float, window: int = 3, temperature: float = 0.2) -> Population:
    pool = Population(window, temperature)
    for i, weight in enumerate(weights):
        pool.add(pool.new_member(Instruction(f"i{i}", f"text {i}"), weight))
    return pool


def test_selection_probabilities_by_hand():
    # exp(0.4/0.2) : exp(0.2/0.2) : exp(0) = 7.389056 : 2.718282 : 1, sum 11.107338
    by_hand = pytest.approx([0.665241, 0.244728, 0.090031], abs=1e-6)
    assert population(0.4, 0.2, 0.0).probabilities() == by_hand
    huge = population(1e6, 1e6, -1e6, temperature=0.01).probabilities()
    assert huge == pytest.approx([0.5, 0.5, 0.0])


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=9), st.floats(0.01, 5), st.floats(-9, 9))
def test_selection_probabilities_sum_to_one_and_ignore_a_shift(weights, temperature, shift):
    chances = population(*weights, temperature=temperature).probabilities()
    moved = population(*(w + shift for w in weights), temperature=temperature).probabilities()
    assert math.fsum(chances) == pytest.approx(1.0)
    assert moved == pytest.approx(chances, abs=1e-6)


def test_window_holds_observed_steps_only():
    p = population(0.3, 0.6, window=2)
    p.observe({"i0": [1.0, 0.0]})  # 0.5; i1 was not drawn
    p.observe({"i0": [1.0, 1.0, 1.0, 0.0]})  # 0.75
    p.observe({"i1": [0.0]})
    assert p["i0"].weight == pytest.approx(0.625)
    assert p["i1"].weight == 0.0
    p.observe({"i0": [0.0, 0.0]})  # 0.5 leaves the window
    assert p["i0"].weight == pytest.approx(0.375)
    assert (p["i0"].steps, p["i0"].rollouts) == (3, 8)


@pytest.mark.parametrize(
    ("weights", "parents", "dropped"),
    [
        ((0.1, 0.5, 0.3, 0.2, 0.4), 1, "03"),  # the bottom half, rounded down
        ((0.5, 0.5, 0.5, 0.5), 1, "23"),  # of ties the oldest stay
        ((0.0, 0.1, 0.2, 0.3), 3, "0"),  # parents stay
        ((0.0, 0.1), 2, ""),
        ((0.0,), 0, ""),  # and one at least
    ],
)
def test_prune(weights: tuple[float, ...], parents: int, dropped: str):
    p = population(*weights)
    assert "".join(member.id[1] for member in p.prune(parents)) == dropped
    assert not {member.id[1] for member in p.members} & {*dropped}


def test_draw_is_keyed_and_follows_the_probabilities():
    p = population(0.4, 0.2, 0.0)
    draws = [p.draw(f"seed/1/{g}").id for g in range(4000)]
    assert draws == [p.draw(f"seed/1/{g}").id for g in range(4000)]
    shares = [draws.count(f"i{i}") / 4000 for i in range(3)]
    assert shares == pytest.approx([0.665, 0.245, 0.090], abs=0.03)


def test_too_close_by_hand():
    # variances 0.01 and 0.01, 3 values each: error sqrt(0.02/3) = 0.0816
    low = [0.1, 0.2, 0.3]
    assert too_close_to_call(low, [0.18, 0.28, 0.38])
    assert not too_close_to_call(low, [0.19, 0.29, 0.39])
    assert too_close_to_call([0.9], [0.1, 0.2])


def test_the_best_names_its_evidence_and_those_that_cannot_be_told_from_it():
    p = population(0.0, 0.0, 0.9, 0.0)
    assert p.best() is None  # before any is observed
    for value in (0.5, 0.7):
        p.observe({"i0": [value] * 2, "i1": [value - 0.1], "i2": [0.0], "i3": [value - 0.05]})
    best, settled = p.best(), p.best("i1")
    assert best is not None
    assert settled is not None
    assert (best.instruction.id, best.weight) == ("i0", pytest.approx(0.6))
    assert (best.steps, best.rollouts, best.too_close) == (2, 4, True)
    assert [rival.id for rival in best.rivals] == ["i3", "i1"]
    assert best.runner_up == best.rivals[0]
    assert settled.instruction.id == "i1"
    assert settled.weight == pytest.approx(0.5)
    assert [rival.id for rival in settled.rivals] == ["i0", "i3"]


@pytest.mark.parametrize(
    ("rewards", "start"), [([0.2, 0.4], 0.9), ([-3.0, -2.0], 0.0), ([-3.0, -2.0], -1.0)]
)
def test_the_best_is_one_of_those_observed_whatever_a_newcomer_starts_at(rewards, start):
    p = population(*[start] * 4)
    for i, reward in enumerate(rewards):
        p.observe({f"i{i}": [reward]})
    best = p.best()
    assert best is not None
    assert (best.instruction.id, best.weight, best.rollouts) == ("i1", rewards[1], 1)
    assert best.runner_up is not None
    assert best.runner_up.id == "i0"
    # The newcomers are drawn more often, and yet do not drive it out.
    assert p.probabilities()[2] > p.probabilities()[1]
    for k in (1, 2, 3):
        assert [m.id for m in p.top(k)] == [*["i2", "i3"][: k - 1], "i1"]
    p.prune(1)
    assert {m.id for m in p.members} == {"i1", "i2"}


@given(st.lists(st.lists(st.floats(0, 1), max_size=4), max_size=12), st.integers(1, 5))
def test_state_round_trip_and_equal_continuation(steps, window):
    p = population(0.1, 0.7, window=window)
    for i, values in enumerate(steps):
        p.observe({f"i{i % 2}": values})
    copy = population(window=window)
    copy.load_state_dict(json.loads(json.dumps(p.state_dict())))
    assert copy.state_dict() == p.state_dict()
    for q in (p, copy):
        q.observe({"i0": [0.25, 0.5]})
    assert copy.probabilities() == p.probabilities()
