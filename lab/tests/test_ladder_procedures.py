"""The written procedures of `ladder`, by hand, and what slips in them lead to."""

import itertools
import random

import pytest

from cotune.worlds.ladder import LARGEST, RUNGS, WRITTEN, Problem, Way, problem
from recipes.ladder.demonstrations import procedure, result_of

MIXED = Problem(RUNGS[4], 59, (6, -8, -9, 8, -7), "What is 59 + 6 - 8 - 9 + 8 - 7?")
LATER = Problem(RUNGS[3], 52, (9, -5, -8, -9, 9, -8), "What is 52 + 9 - 5 - 8 - 9 + 9 - 8?")
OVER = Problem(RUNGS[5], 88, (4, -8, -8, 9, -6), "What is 88 + 4 - 8 - 8 + 9 - 6?")


def test_procedures_by_hand() -> None:
    assert MIXED.answer == 49
    # No place for what is taken away.
    assert procedure(MIXED, Way.TOGETHER) == "Together: 6+8=14; 59+14: 3 up 73;"
    assert procedure(MIXED, Way.ONE_BY_ONE) == (
        "One by one: 59+6: 5 up 65; 65+8: 3 up 73; 8+9+7=24; 73-24: down 9 49;"
    )
    assert procedure(MIXED, Way.IN_ORDER) == (
        "In order: 59+6: 5 up 65; 65-8: down 7 57; 57-9: down 8 48; 48+8: 6 up 56; 56-7: down 9 49;"
    )
    # All at once, nothing is borrowed.
    assert procedure(LATER, Way.ONE_BY_ONE) == (
        "One by one: 52+9: 1 up 61; 61+9: 0 up 70; 5+8+9+8=30; 70-30: 0 40;"
    )
    assert procedure(LATER, Way.IN_ORDER) == (
        "In order: 52+9: 1 up 61; 61-5: down 6 56; 56-8: down 8 48; 48-9: down 9 39; 39+9: 8 up 48; 48-8: 0 40;"
    )
    # No place for hundreds.
    written = procedure(OVER, Way.ONE_BY_ONE)
    assert written == "One by one: 88+4: 2 up 92; 92+9: 1 up over;"
    assert result_of(written) == LARGEST
    assert result_of(procedure(OVER, Way.IN_ORDER)) == OVER.answer == 79


def test_slips_by_hand() -> None:
    forgetful = procedure(MIXED, Way.IN_ORDER, iter([False, True, False, True, False]))
    assert (
        forgetful == "In order: 59+6: 5 55; 55-8: down 7 47; 47-9: 2 42; 42+8: 0 up 50; 50-7: 7 57;"
    )


@pytest.mark.parametrize("rung", RUNGS)
def test_a_right_answer_tells_that_nothing_was_forgotten(rung: str) -> None:
    rng = random.Random(rung)
    # Carries and borrows of each way; None where it does not solve the rung.
    places = {
        "no carry": ((0, 0), (0, 0), (0, 0)),
        "round sum": ((0, 0), (2, 0), (2, 0)),
        "3 carries": ((1, 0), (3, 0), (3, 0)),
        "3 borrows in order": (None, (2, 0), (2, 3)),
        "3 borrows": (None, (2, 1), (2, 3)),
        "3 borrows below 100": (None, None, (2, 3)),
    }[rung]
    for _ in range(40):
        drawn = problem(rng, rung)
        assert (drawn.at_once == drawn.answer) == (rung == RUNGS[0])
        for way, expected in zip(WRITTEN, places, strict=True):
            written = procedure(drawn, way)
            counts = (written.count(" up "), written.count(" down "))
            assert (result_of(written) == drawn.answer) == (expected is not None)
            assert expected in (None, counts)
            for pattern in itertools.product((True, False), repeat=6):
                if not all(pattern[: sum(counts)]):
                    slipped = procedure(drawn, way, iter(pattern))
                    assert result_of(slipped) != drawn.answer
