import operator
import random
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from cotune.errors import ConfigError
from cotune.protocols import Environment
from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory, Turn
from cotune.worlds.arithmetic import (
    HARD,
    KINDS,
    SIZES,
    SPLITS,
    ArithmeticEnvironment,
    ArithmeticOptions,
    Operation,
    Problem,
    problem,
    split_of,
)

NUMBER = re.compile(r"\d+")
APPLIED = {"+": operator.add, "-": operator.sub, "*": operator.mul}
EXPRESSION = re.compile(r"(\d+) ([-+*]) (\d+)")
COLUMN = re.compile(r"(\d+)([-+*])(\d+)([-+])(\d+)=(\d+) (\d+);")


def sample(count: int, kind: str, size: str) -> list[Problem]:
    rng = random.Random(f"{kind}/{size}")
    return [problem(rng, kind, size) for _ in range(count)]


def strata() -> list[tuple[str, str]]:
    return [(kind, size) for kind in KINDS for size in SIZES]


# ---- operations


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_an_addition_or_subtraction_is_right_by_its_columns(a: int, b: int):
    check_columns(Operation(a, "+", b), a + b)
    check_columns(Operation(max(a, b), "-", min(a, b)), abs(a - b))


@given(st.integers(0, 10**6), st.integers(0, 9))
def test_a_product_is_right_by_its_columns(a: int, b: int):
    check_columns(Operation(a, "*", b), a * b)


def check_columns(operation: Operation, result: int) -> None:
    """Every column is right, carries its own, and the last one shows the result."""
    assert operation.result == result
    columns = [m.groups() for m in COLUMN.finditer(operation.columns)]
    assert " ".join(f"{a}{o}{b}{p}{c}={v} {r};" for a, o, b, p, c, v, r in columns) == (
        operation.columns
    )
    for a, o, b, p, c, value, _ in columns:
        assert APPLIED[p](APPLIED[o](int(a), int(b)), int(c)) == int(value)
    for i, (*_, shown) in enumerate(columns[:-1], 1):
        # The result so far holds one digit for each column.
        assert (len(shown), int(shown)) == (i, result % 10**i)
    assert int(columns[-1][-1]) == result
    if operation.operator == "-":
        borrows = [int(c) for *_, c, _, _ in columns]
        tops = [int(a) >= 10 for a, *_ in columns]
        assert borrows == [0, *map(int, tops[:-1])]
    else:
        carries = [int(c) for *_, c, _, _ in columns]
        assert carries == [0, *(int(v) // 10 for *_, v, _ in columns[:-1])]
        assert operation.carries == sum(c > 0 for c in carries)


@pytest.mark.parametrize(
    ("operation", "slipped", "carries"),
    [
        (Operation(47, "+", 85), 122, 1),
        (Operation(1999, "+", 1), 1990, 3),
        (Operation(12, "+", 34), 46, 0),
        (Operation(42, "-", 17), 35, 1),
        (Operation(1000, "-", 1), 1001, 3),
        (Operation(47, "*", 6), 242, 1),
        (Operation(123, "*", 3), 369, 0),
        (Operation(5, "+", 123), 128, 0),
    ],
)
def test_slips_and_carries_by_hand(operation: Operation, slipped: int, carries: int):
    assert (operation.slipped, operation.carries) == (slipped, carries)
    assert (operation.slipped == operation.result) == (carries == 0)


# ---- problems


@pytest.mark.parametrize(("kind", "size"), strata())
def test_a_procedure_ends_in_the_answer_of_the_question(kind: str, size: str):
    for made in sample(300, kind, size):
        assert made.stratum == f"{size} {kind}"
        assert int(NUMBER.findall(made.procedure)[-1]) == made.answer
        assert made.answer >= 0
        # The numbers asked about are those of the steps; the second step starts from the first.
        asked = Counter(map(int, NUMBER.findall(made.text)))
        first, *rest = made.steps
        assert asked == Counter([first.left, first.right, *(s.right for s in rest)])
        assert all(b.left == a.result for a, b in pairwise(made.steps))
        assert len(made.steps) == (2 if kind == "word problem" else 1)


def test_the_meaning_of_a_story():
    seen = set[str]()
    for made in sample(60, "word problem", "long"):
        numbers = [int(n) for n in NUMBER.findall(made.text)]
        if "boxes" in made.text:
            k, a, b = numbers
            assert made.answer == k * a + b
        else:
            a, b, c = numbers
            assert made.answer == a + b - c
        seen.add("boxes" if "boxes" in made.text else "gives away")
    assert len(seen) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_at_once_a_short_problem_is_right_and_a_long_one_wrong(kind: str):
    assert all(p.at_once == p.answer for p in sample(300, kind, "short"))
    long = sample(2000, kind, "long")
    # In a story two slips cancel out now and then.
    assert sum(p.at_once == p.answer for p in long) <= (20 if kind == "word problem" else 0)
    assert all(p.at_once >= 0 for p in long)
    assert all(sum(s.carries for s in p.steps) >= 2 for p in long)


def test_kinds_have_procedures_of_their_own():
    starts = {kind: {p.procedure.split()[0] for p in sample(50, kind, "long")} for kind in KINDS}
    assert all(len(words) == 1 for words in starts.values())
    assert len(set[str]().union(*starts.values())) == len(KINDS)
    assert tuple(f"long {kind}" for kind in KINDS) == HARD


def test_a_problem_belongs_to_one_split_for_ever():
    # Fixed values: a change here would move test problems into training.
    texts = ["What is 4711 + 815?", "What is 22 + 31?", "Compute 1824 - 247.", "Compute 1 + 1."]
    assert [split_of(text) for text in texts] == ["train", "validation", "test", "train"]
    counts = Counter(split_of(p.text) for p in sample(3000, "addition", "long"))
    assert set(counts) == set(SPLITS)
    for split, share in SPLITS.items():
        assert abs(counts[split] / 3000 - share) < 0.03


# ---- the environment


def counts(tasks: Any) -> Counter[str]:
    return Counter(task.stratum for task in tasks)


@pytest.fixture(scope="module")
def default() -> ArithmeticEnvironment:
    return ArithmeticEnvironment()


def test_splits_are_disjoint_and_of_their_sizes(default: ArithmeticEnvironment):
    env: Environment = default
    sizes = {split: len(env.tasks(split)) for split in SPLITS}
    assert sizes == {"train": 480, "validation": 80, "test": 320}
    everything = [task for split in SPLITS for task in env.tasks(split)]
    assert len({task.question for task in everything}) == len({t.id for t in everything}) == 880
    for split in SPLITS:
        assert {split_of(task.question) for task in env.tasks(split)} == {split}
    assert env.initial_instruction == "Solve the problem. Put the final answer in \\boxed{}."


def test_strata_are_equal_and_a_prefix_is_mixed_alike(default: ArithmeticEnvironment):
    train = default.tasks("train")
    assert counts(train) == {f"{size} {kind}": 60 for kind, size in strata()}
    for length in (8, 16, 240):
        assert set(counts(train[:length]).values()) == {length // 8}


@pytest.mark.parametrize(("share", "long"), [(0.0, 0), (0.25, 10), (0.3, 12), (0.5, 20), (1.0, 40)])
def test_the_share_of_long_problems(share: float, long: int):
    options = ArithmeticOptions(train=160, validation=1, test=1, long_share=share)
    got = counts(ArithmeticEnvironment(options).tasks("train"))
    expected = {f"{size} {kind}": long if size == "long" else 40 - long for kind, size in strata()}
    assert got == {stratum: n for stratum, n in expected.items() if n}


def test_some_kinds_and_a_count_that_does_not_divide():
    options = ArithmeticOptions(
        train=7, validation=1, test=2, kinds=("word problem", "addition"), long_share=0.5
    )
    env = ArithmeticEnvironment(options)
    assert [task.stratum for task in env.tasks("train")] == [
        "short word problem",
        "short addition",
        "long word problem",
        "long addition",
        "short word problem",
        "short addition",
        "long word problem",
    ]
    assert [task.stratum for task in env.tasks("test")] == ["short word problem", "short addition"]


def test_a_seed_decides_and_a_longer_split_begins_with_the_shorter_one():
    small = ArithmeticOptions(train=40, validation=8, test=8)
    one = ArithmeticEnvironment(small).tasks("train")
    assert ArithmeticEnvironment(small).tasks("train") == one
    longer = ArithmeticEnvironment(replace(small, train=60)).tasks("train")
    assert longer[:40] == one
    other = ArithmeticEnvironment(replace(small, seed=1)).tasks("train")
    assert not {task.id for task in one} & {task.id for task in other if "long" in task.stratum}


def test_a_task_holds_its_answer_and_its_procedure_as_solution(default: ArithmeticEnvironment):
    for task in default.tasks("test"):
        assert task.answers == (NUMBER.findall(task.solution)[-1],)
        expression = EXPRESSION.search(task.question)
        if expression is None:
            assert task.stratum.endswith("word problem")
            continue
        left, sign, right = expression.groups()
        size, _, kind = task.stratum.partition(" ")
        step = Operation(int(left), sign, int(right))  # type: ignore[arg-type]
        made = Problem(kind, size, task.question, (step,))
        assert (task.answers, task.solution) == ((str(step.result),), made.procedure)


def test_more_short_problems_than_there_are():
    options = ArithmeticOptions(
        train=1, validation=400, test=1, kinds=("multiplication",), long_share=0.0
    )
    with pytest.raises(ConfigError, match=r"environment\.validation asks for more than the") as e:
        ArithmeticEnvironment(options)
    found = int(NUMBER.findall(str(e.value))[0])
    assert 180 <= found <= 260  # a tenth of 90 × 8 products in three wordings
    assert "short multiplication" in str(e.value)


def trajectory(task: Task, text: str) -> Trajectory:
    prompt = Prompt("Solve it.")
    assignment = Assignment(task, prompt, prompt, "i0", 0)
    return Trajectory(
        assignment, (1,), (1,), (2,), (1,), (0.0,), (Turn(text),), StopReason.ANSWERED
    )


def test_the_boxed_answer_scores(default: ArithmeticEnvironment):
    for task in default.tasks("test")[:16]:
        right = int(task.answers[0])
        solved = f"{task.solution} \\boxed{{{right}}}"
        assert default.score(trajectory(task, solved)) == (1.0, str(right))
        assert default.score(trajectory(task, f"\\boxed{{{right:,}}}"))[0] == 1.0
        assert default.score(trajectory(task, f"\\boxed{{{right + 1}}}"))[0] == 0.0
        assert default.score(trajectory(task, f"{task.solution} {right}")) == (0.0, None)
        # Boxing the question is no answer.
        if expression := EXPRESSION.search(task.question):
            assert default.score(trajectory(task, f"\\boxed{{{expression[0]}}}"))[0] == 0.0


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"train": 0}, "environment.train is 0; expected 1 or more"),
        ({"test": -1}, "environment.test is -1"),
        ({"kinds": ["division"]}, "environment.kinds is ['division']; expected some of addition"),
        ({"kinds": []}, "environment.kinds is []"),
        ({"kinds": ["addition", "addition"]}, "each once"),
        ({"long_share": 1.5}, "environment.long_share is 1.5; expected between 0 and 1"),
        ({"long_share": float("nan")}, "environment.long_share is nan"),
        ({"lenght": 3}, "lenght"),
    ],
)
def test_options_refuse_what_cannot_work(raw: dict[str, Any], message: str):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(ArithmeticOptions).validate_python(raw)
    assert message in str(caught.value)
