from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from cotune.methods.p2o.hints import HintOptions
from cotune.methods.p2o.p2o import P2OOptions
from cotune.protocols import Strategy
from cotune.types import Assignment
from tests.methods.p2o.hint_fakes import KEYWORDS
from tests.methods.p2o.p2o_run import (
    EASY,
    GROUP,
    HARD,
    INSTRUCTION,
    PLAIN,
    TASKS,
    Run,
    Succeeds,
    hinted_ids,
    hints,
)

# ---- Phase 1


def test_the_first_epoch_is_plain_and_then_hard_questions_alone_see_hints():
    run = Run()
    strategy: Strategy = run.strategy
    first = run.batch(0)
    assert all(a.sampled == a.trained == PLAIN and a.instruction_id == "i0" for a in first)
    assert run.events.rows == []
    assignments = run.batch(1)
    assert {(a.sampled.instruction, a.trained) for a in assignments} == {(INSTRUCTION, PLAIN)}
    second = hints(assignments)
    assert all(len(second[t.id]) == GROUP and all(second[t.id]) for t in HARD)
    assert all(second[t.id] == ("",) * GROUP for t in EASY)
    assert {hint for own in second.values() for hint in own} - {""} <= set(run.pool["texts"])
    assert strategy.best_prompt() == PLAIN
    assert strategy.best_instruction_id() == "i0"


@pytest.mark.parametrize(("below", "hard"), [(1, {0}), (2, {0, 1}), (4, {0, 1, 2, 3})])
def test_a_question_is_hard_below_a_count_of_successes(below: int, hard: set[int]):
    successes = {task.id: i % (GROUP + 1) for i, task in enumerate(TASKS)}
    run = Run(successes_below=below)
    run.batch(0, lambda a, k: k < successes[a.task.id])
    expected = {task_id for task_id, n in successes.items() if n in hard}
    assert hinted_ids(run.batch(1)) <= expected
    assert run.strategy.state_dict()["hard"]["hard"] == sorted(expected)
    (event,) = run.events.of("hard_samples")
    assert event == {
        "epoch": 1,
        "seen": len(TASKS),
        "hard": len(expected),
        "newly_hard": len(expected),
        "graduated": 0,
        "solved_by_hint": 0,
    }


def test_hints_of_a_group_differ_and_those_that_solved_a_dev_question_are_its_own():
    run = Run()
    run.batch(0)
    got, dev = hints(run.batch(1)), set(run.pool["dev"])
    assert any(len(set(got[t.id])) > 1 for t in HARD)
    for task in HARD:
        if task.id in dev:
            assert all(KEYWORDS[task.stratum] in hint for hint in got[task.id])


@pytest.mark.parametrize(("option", "count"), [("all", 4), ("half", 2)])
def test_how_many_of_a_group_see_a_hint(option: Any, count: int):
    run = Run(hinted_per_group=option)
    run.batch(0)
    assignments = run.batch(1)
    got = hints(assignments)
    assert {sum(map(bool, got[t.id])) for t in HARD} == {count}
    assert {sum(map(bool, got[t.id])) for t in EASY} == {0}
    assert all(a.sampled == a.trained == PLAIN for a in assignments if not a.sampled.hint)


# ---- mining


def only_with_hint(assignment: Assignment, k: int) -> bool:
    return assignment.task in EASY or assignment.sampled.hint != ""


def only_without_hint(assignment: Assignment, k: int) -> bool:
    return assignment.task in EASY or assignment.sampled.hint == ""


@pytest.mark.parametrize(
    ("hinted_per_group", "succeeds", "graduated", "solved_by_hint"),
    [
        ("all", only_with_hint, 20, 20),
        ("half", only_with_hint, 0, 0),
        ("half", only_without_hint, 20, 0),
    ],
)
def test_a_question_in_half_hinted_groups_is_judged_on_plain_rollouts(
    hinted_per_group: Any, succeeds: Succeeds, graduated: int, solved_by_hint: int
):
    run = Run(hinted_per_group=hinted_per_group)
    run.batch(0)
    run.batch(1, succeeds)
    third = run.batch(2)
    last = run.events.of("hard_samples")[-1]
    assert (last["graduated"], last["solved_by_hint"]) == (graduated, solved_by_hint)
    assert hinted_ids(third) == (set() if graduated else {t.id for t in HARD})


def test_questions_are_known_by_their_id_not_by_their_place():
    def succeeds(a: Assignment, k: int) -> bool:
        return a.task in EASY or a.task.stratum == "unit"

    orders = [TASKS, TASKS[::-1], [*TASKS[13:], *TASKS[:13]]]
    runs = [Run() for _ in orders]
    for run, order in zip(runs, orders, strict=True):
        run.batch(0, succeeds, order[:7])
        run.batch(0, succeeds, order[7:])
    one, *others = (
        hints(run.batch(1, tasks=order)) for run, order in zip(runs, orders, strict=True)
    )
    hard = {t.id for t in HARD if t.stratum == "sum"}
    assert {i for i, own in one.items() if any(own)} < hard  # some hints were derived from the rest
    assert {*runs[0].strategy.state_dict()["hard"]["hard"]} == hard
    assert others == [one, one]
    # Nor do its hints depend on the step of the epoch in which its turn comes.
    assert hints(runs[0].batch(1, tasks=TASKS[5:9])) == {t.id: one[t.id] for t in TASKS[5:9]}


# ---- options


def test_hinted_and_judged_counts_by_hand():
    def counts(option: Any) -> list[tuple[int, int]]:
        options = P2OOptions(hinted_per_group=option)
        return [(options.hinted(size), options.judged(size)) for size in (2, 5, 6)]

    assert counts("all") == [(2, 2), (5, 5), (6, 6)]
    assert counts("half") == [(1, 1), (3, 2), (3, 3)]


def test_defaults_are_the_papers():
    options = P2OOptions()
    assert (options.successes_below, options.hinted_per_group) == (2, "all")
    assert options.distillation.ratio == "original"
    assert options.hints == HintOptions()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"successes_below": 0}, "successes_below is 0; expected at least 1"),
        ({"hints": {"beam": 0}}, "beam is 0; expected 1 or more"),
        ({"hints": {"dev_size": 50, "budget": 50}}, "budget is 50; expected more than dev_size"),
        ({"distillation": {"low": 2, "high": 1}}, "low is 2.0 and high 1.0"),
    ],
)
def test_options_refuse_what_cannot_work(raw: dict[str, Any], message: str):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(P2OOptions).validate_python(raw)
    assert message in str(caught.value)
