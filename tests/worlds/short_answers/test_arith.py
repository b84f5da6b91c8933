"""Sums, differences and products: the reward by hand, and disjoint splits."""

import random
import re
from collections import Counter
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.errors import ConfigError
from cotune.rewards.last_number import last_number
from cotune.types import Assignment, Prompt
from cotune.worlds import arithmetic
from cotune.worlds.short_answers.arith import (
    STRATA,
    ArithEnvironment,
    ArithOptions,
    reward,
    type_of,
)
from tests.helpers import make_trajectory

SPLITS = ("train", "validation", "test")
ENVIRONMENT = ArithEnvironment()


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("42", 1.0),
        ("The result is 42.", 1.0),
        ("12 + 30 = 42", 1.0),
        ("**42**", 1.0),
        ("$42$, I think!", 1.0),
        ("42.0", 1.0),
        ("42nd", 1.0),
        ("x=42", 1.0),
        ("", 0.0),
        ("forty-two", 0.0),
        ("-42", 0.0),
        ("−42", 0.0),
        ("0-42", 1.0),  # a minus after a number is an operation
        ("42.5", 0.0),
        ("4 2", 0.0),
        ("1,42", 1.0),  # a list, not a number of four digits
        ("42,000", 0.0),
        ("142", 0.0),
        # Only the last of several numbers counts.
        ("42 or 43", 0.0),
        ("40, 41, 42, 43, 44", 0.0),
        ("42. Check: 42 - 30 = 12", 0.0),
        ("It is 42 (see step 2)", 0.0),
        ("41? No: 42", 1.0),
        ("1" * 5000, 0.0),
    ],
)
def test_the_last_number_counts(reply: str, expected: float) -> None:
    assert reward(reply, 42) == expected


@given(st.text(max_size=40), st.integers(0, 300))
def test_any_text_before_the_answer_is_allowed(before: str, answer: int) -> None:
    assert reward(f"{before}: {answer}", answer) == 1
    assert reward(f"{before}: {answer} {answer + 1}", answer) == 0


def test_a_negative_number_is_read() -> None:
    assert [last_number(text) for text in ("it is -7", "it is −7.5", "3-7", "no")] == [
        Decimal(-7), Decimal("-7.5"), Decimal(7), None,
    ]  # fmt: skip


def value_of(question: str, kind: str) -> int:
    """The value of a question, worked out from its numbers alone."""
    a, b = (int(n) for n in re.findall(r"\d+", question))
    return {"addition": a + b, "subtraction": abs(a - b), "multiplication": a * b}[kind]


def pairs(split: str) -> set[tuple[str, frozenset[int]]]:
    return {
        (task.stratum, frozenset(int(n) for n in re.findall(r"\d+", task.question)))
        for task in ENVIRONMENT.tasks(split)
    }


def test_splits_have_their_sizes_and_answers_are_right() -> None:
    assert [len(ENVIRONMENT.tasks(split)) for split in SPLITS] == [2000, 300, 300]
    for split in SPLITS:
        tasks = ENVIRONMENT.tasks(split)
        for task in tasks:
            assert type_of(task.question) == task.stratum
            assert task.answers == (str(value_of(task.question, task.stratum)),)
            assert max(int(n) for n in re.findall(r"\d+", task.question)) <= 50
        counts = Counter(task.stratum for task in tasks)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_no_pair_of_numbers_is_in_two_splits() -> None:
    train, validation, test = map(pairs, SPLITS)
    assert not train & test
    assert not train & validation
    assert not validation & test
    assert len(test) > 100


def test_numbers_stay_within_their_bounds() -> None:
    for split in SPLITS:
        for task in ENVIRONMENT.tasks(split):
            numbers = sorted(int(n) for n in re.findall(r"\d+", task.question))
            assert numbers[0] >= 2
            if task.stratum == "multiplication":
                assert numbers[0] <= 12
                assert numbers[1] <= 25


def test_another_seed_asks_other_questions_on_the_same_pairs() -> None:
    other = ArithEnvironment(ArithOptions(seed=1))
    assert ENVIRONMENT.tasks("test") == ArithEnvironment().tasks("test")
    ids = {task.id for task in ENVIRONMENT.tasks("train")}
    new = [task for task in other.tasks("test") if task.id not in ids]
    assert len(new) == 300


def test_the_size_of_one_split_changes_no_other() -> None:
    small = ArithEnvironment(ArithOptions(train=9, validation=7))
    assert small.tasks("test") == ENVIRONMENT.tasks("test")
    assert list(small.tasks("train")) == list(ENVIRONMENT.tasks("train"))[:9]


def test_it_says_when_there_are_too_few() -> None:
    with pytest.raises(
        ConfigError, match=r"^environment.test asks for more than the \d+ questions on mul"
    ):
        ArithEnvironment(ArithOptions(test=9000))
    with pytest.raises(ValueError, match=r"environment.train is 0"):
        ArithOptions(train=0)


def test_no_question_is_one_of_the_bundled_world_arithmetic() -> None:
    rng = random.Random(0)
    for kind in arithmetic.KINDS:
        for size in arithmetic.SIZES:
            for _ in range(40):
                assert type_of(arithmetic.problem(rng, kind, size).text) is None
    assert STRATA == ("addition", "subtraction", "multiplication")


def test_an_episode_is_scored_by_its_own_text() -> None:
    task = ENVIRONMENT.tasks("train")[0]
    prompt = Prompt("Think step by step.")
    assignment = Assignment(task, prompt, prompt, "i0", 0)
    right = make_trajectory(assignment, 0.0, f"It is {task.answers[0]}.")
    assert ENVIRONMENT.score(right) == (1.0, task.answers[0])
    assert ENVIRONMENT.score(make_trajectory(assignment, 0.0, "no idea")) == (0.0, None)
    assert ENVIRONMENT.reference(task) == task.answers[0]
