from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.methods.p2o.hints import (
    HintOptions,
    HintPool,
    assign_hints,
    auto_budget,
    candidates,
    covering,
)
from cotune.methods.text_evolution import split
from tests.helpers import make_tasks

POOL = HintPool(
    ("", "columns", "units", "both few"),
    ("q0", "q1", "q2", "q3", "q4"),
    (
        (0.0, 0.0, 0.0, 0.0, 0.0),
        (1.0, 1.0, 1.0, 0.0, 0.0),  # mean 0.6
        (0.0, 0.0, 1.0, 1.0, 0.0),  # mean 0.4: adds q3
        (1.0, 0.0, 0.0, 1.0, 0.0),  # mean 0.4: adds q3 too, but later
    ),
    ((),) * 4,
)


def pool_of(*rows: tuple[int, ...]) -> HintPool:
    texts = tuple(f"h{i}" for i in range(len(rows)))
    dev = tuple(f"q{j}" for j in range(len(rows[0])))
    return HintPool(texts, dev, tuple(tuple(map(float, row)) for row in rows), ((),) * len(rows))


@pytest.mark.parametrize(
    ("pool", "cover"),
    [
        (POOL, [1, 2]),  # what adds most, then what adds any
        # 0 solves most and comes first, though 1 and 2 alone would cover all.
        (pool_of((0, 1, 1, 1, 1, 0), (1, 1, 1, 0, 0, 0), (0, 0, 0, 1, 1, 1)), [0, 1, 2]),
        (pool_of((1, 0, 0), (0, 1, 0), (0, 0, 1)), [0, 1, 2]),
        # Once q0 to q2 are covered, 1 and 2 both add q3 alone; 2 has the higher mean.
        (pool_of((1, 1, 1, 0), (0, 0, 0, 1), (0, 1, 0, 1)), [0, 2]),
        (pool_of((0, 0), (0, 0)), []),
        (pool_of((1, 1), (1, 1)), [0]),  # the seed counts like any other
        (HintPool((), (), (), ()), []),
    ],
)
def test_cover_by_hand(pool: HintPool, cover: list[int]):
    assert covering(pool) == cover


def test_dev_questions_get_only_hints_that_solved_them():
    drawn = assign_hints(POOL, ["q0", "q2", "q3", "q4", "elsewhere"], 400, "key")
    assert set(drawn["q0"]) == {"columns"}
    assert set(drawn["q3"]) == {"units"}  # not "both few": it is not in the cover
    for either in ("q2", "q4", "elsewhere"):  # by both, by none, not of dev: all of the cover
        count = Counter(drawn[either])
        assert set(count) == {"columns", "units"}
        assert 0.5 < count["columns"] / 400 < 0.7  # weights 0.6 and 0.4


def test_rewards_below_zero_give_weights_all_the_same():
    # Means -1/3 and -2/3, and 1/2 and -1/2: a mean that is not above 0 is no weight.
    both_below = pool_of((1, 1, -1, -1, -1, -1), (-1, -1, 1, -1, -1, -1))
    one_below = pool_of((1, 1, 1, -1), (-1, -1, -1, 1))
    for pool, share in ((both_below, 2 / 3), (one_below, 3 / 4)):
        count = Counter(assign_hints(pool, ["elsewhere"], 400, "key")["elsewhere"])
        assert set(count) == {"h0", "h1"}
        assert abs(count["h0"] / 400 - share) < 0.08


def test_draws_depend_on_key_and_id_alone():
    ids = [f"x{i}" for i in range(20)]
    drawn = assign_hints(POOL, ids, 6, "key")
    assert all(len(hints) == 6 for hints in drawn.values())
    assert any(len(set(hints)) == 2 for hints in drawn.values())
    assert assign_hints(POOL, ids[::-1][:7], 6, "key") == {i: drawn[i] for i in ids[13:]}
    assert assign_hints(POOL, ids, 6, "another") != drawn


def shown(*ids: Sequence[str]) -> HintPool:
    return replace(POOL, shown=tuple(map(tuple, ids)))


def test_no_question_draws_a_hint_that_was_derived_from_it():
    # "columns" and "units" cover; "both few" solves two, too.
    pool = shown("", ["t1", "t2", "t3"], ["t2", "t3"], ["t3"])
    assert candidates(pool, ["t0", "t1", "t2", "t3"]) == {
        "t0": [1, 2],
        "t1": [2],
        "t2": [3],  # none of the cover is left
        "t3": [],
    }
    drawn = assign_hints(pool, ["t0", "t1", "t2", "t3"], 400, "key")
    assert {i: set(hints) for i, hints in drawn.items()} == {
        "t0": {"columns", "units"},
        "t1": {"units"},
        "t2": {"both few"},
    }
    # No hint solved anything.
    assert candidates(pool_of((0, 0)), ["q0"]) == assign_hints(pool_of((0, 0)), ["q0"], 6, "") == {}


def test_a_hint_does_not_cover_a_question_that_it_was_derived_from():
    pool = shown("", ["q0", "q1", "q2"], [], [])
    assert pool.solved(1) == frozenset()
    assert covering(pool) == [2, 3]  # "both few" now adds q0
    assert candidates(pool, ["q0", "q1"]) == {"q0": [3], "q1": [2, 3]}


def test_auto_budget():
    assert auto_budget(300) == 11_040
    # 108 trials: 20 + 360 + 3780 + (109 // 5 + 1)·20
    assert auto_budget(20) == 4600


@pytest.mark.parametrize(
    ("count", "dev"), [(1000, 300), (450, 300), (449, 224), (100, 50), (3, 1), (2, 1)]
)
def test_split_sizes(count: int, dev: int):
    tasks = make_tasks(count)
    first, second = split(tasks, HintOptions().dev_size, "key")
    assert (len(first), len(second)) == (dev, count - dev)
    assert {t.id for t in (*first, *second)} == {t.id for t in tasks}
    assert split(tasks[::-1], HintOptions().dev_size, "key") == (first, second)
    assert count < 100 or split(tasks, HintOptions().dev_size, "other") != (first, second)


@given(
    st.integers(1, 5).flatmap(
        lambda width: st.lists(
            st.tuples(
                st.text(),
                st.lists(st.sampled_from([0.0, 1.0]), min_size=width, max_size=width),
                st.frozensets(st.sampled_from(["q0", "q1", "q2"])),
            ),
            min_size=1,
            max_size=6,
        )
    )
)
def test_a_cover_covers_all_that_is_solved(rows: list[tuple[str, list[float], frozenset[str]]]):
    dev = tuple(f"q{j}" for j in range(len(rows[0][1])))
    texts, scores, seen = zip(*rows, strict=True)
    pool = HintPool(texts, dev, tuple(map(tuple, scores)), tuple(map(tuple, seen)))
    cover = covering(pool)
    assert pool.solved_share(cover) == pool.solved_share(range(len(rows)))
    assert len(set(cover)) == len(cover)
    assert not any(task_id in seen[h] for task_id, hs in candidates(pool, dev).items() for h in hs)
