"""P²O at the end of an epoch: its phases, a reflector that fails, a state that goes on."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from cotune.errors import LLMError
from cotune.methods.method import Context
from cotune.methods.p2o.hints import HintPool
from cotune.methods.p2o.p2o import P2O, HardSamples, P2OOptions
from cotune.protocols import LLM, Strategy
from cotune.types import Assignment, Progress, Prompt, StopReason, Task, Trajectory
from tests.helpers import Events, make_trajectory
from tests.methods.p2o.hint_fakes import SMALL, Policy, one_keyword_each, tasks_of_two_kinds
from tests.scripted import Author, raising

INSTRUCTION = "Solve it."
PLAIN = Prompt(INSTRUCTION)
HARD = tasks_of_two_kinds(20)
EASY = [Task(f"e{i}", f"Easy problem {i}?", (f"easy{i}",), "sum") for i in range(6)]
TASKS = [*HARD, *EASY]
GROUP = 4

Succeeds = Callable[[Assignment, int], bool]
"""Whether the k-th rollout of a group is a success."""


def never_when_hard(assignment: Assignment, k: int) -> bool:
    return assignment.task in EASY


class Run:
    """A strategy in the loop, with scripted rewards; one step is a batch of any questions.

    A stand-in for the engine: it keeps what the strategy was asked and what it said.
    """

    def __init__(self, strategy: P2O | None = None, llm: LLM | None = None, **changes: Any) -> None:
        self.strategy = strategy or p2o(**changes)
        self.llm = llm or Author(one_keyword_each)
        self.policy, self.events, self.step = Policy(), Events(), 0

    def batch(
        self, epoch: int, succeeds: Succeeds = never_when_hard, tasks: Sequence[Task] = TASKS
    ) -> list[Assignment]:
        self.step += 1
        progress = Progress(self.step, epoch, 100)
        self.evolve(progress)
        assignments = self.strategy.assign(tasks, GROUP, progress)
        assert [a.task for a in assignments] == [t for t in tasks for _ in range(GROUP)]
        assert [a.group for a in assignments] == [
            g for g in range(len(tasks)) for _ in range(GROUP)
        ]
        trajectories = [
            make_trajectory(a, float(succeeds(a, i % GROUP))) for i, a in enumerate(assignments)
        ]
        self.strategy.observe(trajectories, progress, self.events)
        return assignments

    def evolve(self, progress: Progress) -> dict[str, float]:
        return dict(self.strategy.evolve_if_due(progress, self.policy, self.llm, self.events))

    @property
    def pool(self) -> dict[str, Any]:
        return self.strategy.state_dict()["pool"]


def p2o(seed: int = 1, **changes: Any) -> P2O:
    return P2O(
        P2OOptions(**{"hints": SMALL, **changes}),
        Context(instruction=INSTRUCTION, tasks=TASKS, seed=seed),
    )


def hints(assignments: Sequence[Assignment]) -> dict[str, tuple[str, ...]]:
    """By task id: the hint of each rollout of its group."""
    by_task: dict[str, tuple[str, ...]] = {}
    for a in assignments:
        by_task[a.task.id] = (*by_task.get(a.task.id, ()), a.sampled.hint)
    return by_task


def hinted_ids(assignments: Sequence[Assignment]) -> set[str]:
    return {a.task.id for a in assignments if a.sampled.hint}


# ---- hard samples


def group(
    task_id: str, rewards: Sequence[float], hint: str = "", errors: int = 0
) -> list[Trajectory]:
    """Rollouts of a question; with `errors` more that ended in an environment error."""
    trained = Prompt("i")
    assignment = Assignment(Task(task_id, "?", ("1",)), Prompt("i", hint), trained, "", 0)
    failed = replace(make_trajectory(assignment, 0.0), stop=StopReason.ENVIRONMENT_ERROR)
    return [*(make_trajectory(assignment, reward) for reward in rewards), *[failed] * errors]


def close(samples: HardSamples) -> tuple[tuple[str, ...], int, int, int, int]:
    """Close an epoch: the hard questions, and how many were seen, are newly hard, graduated, by a hint."""
    trend = samples.close_epoch()
    assert trend["hard"] == len(samples.hard)
    counts = (trend[name] for name in ("seen", "newly_hard", "graduated", "solved_by_hint"))
    return (samples.hard, *counts)  # pyright: ignore[reportReturnType]


ONE_OF_SIX = [1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("groups", "errors", "hard"),
    [
        ([ONE_OF_SIX], 0, True),
        ([[0, 1, 1, 0, 0, 0]], 0, False),
        ([[0.5, 0.5, 0.4, 0, 0, 0]], 0, False),
        # The mean over the groups of an epoch counts.
        ([ONE_OF_SIX, ONE_OF_SIX], 0, True),
        ([ONE_OF_SIX, [1, 1, 1, 0, 0, 0]], 0, False),
        # Environment errors are no attempts.
        ([[1, 0]], 4, True),
        ([[1, 1]], 4, False),
    ],
)
def test_fewer_than_two_successes_of_six_is_hard(
    groups: list[list[float]], errors: int, hard: bool
):
    samples = HardSamples()
    for rewards in groups:
        samples.observe(group("q", rewards, errors=errors))
    assert samples.hard == ()  # not before the epoch is over
    assert close(samples) == (("q",) if hard else (), 1, hard, 0, 0)
    samples.observe(group("q", [1, 1, 0, 0, 0, 0]))
    assert close(samples)[0] == ()  # the next epoch starts anew


def test_hard_questions_are_judged_on_their_hinted_rollouts():
    samples = HardSamples()
    for task_id in ("hinted", "unhinted", "still", "unmet"):
        samples.observe(group(task_id, [0, 0, 0]))
    samples.close_epoch()
    samples.observe(group("hinted", [1, 1, 0], hint="Think."))
    samples.observe(group("unhinted", [1, 1, 0], hint=" "))
    samples.observe(group("still", [1, 0, 0], hint="Think.") + group("new", [0, 0, 0]))
    assert close(samples) == (("new", "still", "unmet"), 4, 1, 2, 1)
    # Without an attempt a question keeps its status.
    samples.observe(group("still", [], "Think.", 6) + group("hinted", [], errors=6))
    assert close(samples) == (("new", "still", "unmet"), 0, 0, 0, 0)


@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from("abcde"), st.sampled_from([None, 0.0, 1.0]), st.booleans()),
            max_size=12,
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 3),
)
def test_state_round_trip_in_the_middle_changes_nothing(
    epochs: list[list[tuple[str, float | None, bool]]], saved: int
):
    unbroken, resumed = HardSamples(), HardSamples()
    for number, epoch in enumerate(epochs):
        for task_id, reward, hinted in epoch:
            for samples in (unbroken, resumed):
                rewards = [] if reward is None else [reward]
                samples.observe(group(task_id, rewards, "h" if hinted else "", 1 - len(rewards)))
        if number == saved:
            state = json.loads(json.dumps(resumed.state_dict()))
            resumed = HardSamples()
            resumed.load_state_dict(state)
            assert resumed.state_dict() == state
        assert unbroken.close_epoch() == resumed.close_epoch()


# ---- Phase 1


def test_the_first_epoch_is_plain_and_then_hard_questions_alone_see_hints():
    run = Run()
    strategy: Strategy = run.strategy
    first_epoch = run.batch(0)
    assert all(a.sampled == a.trained == PLAIN and a.instruction_id == "i0" for a in first_epoch)
    assert run.events.rows == []
    assignments = run.batch(1)
    assert {(a.sampled.instruction, a.trained) for a in assignments} == {(INSTRUCTION, PLAIN)}
    by_task = hints(assignments)
    assert all(len(by_task[t.id]) == GROUP and all(by_task[t.id]) for t in HARD)
    assert all(by_task[t.id] == ("",) * GROUP for t in EASY)
    assert {hint for row in by_task.values() for hint in row} - {""} <= set(run.pool["texts"])
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


def test_half_of_a_group_may_see_a_hint():
    run = Run(hinted_per_group="half")
    run.batch(0)
    assignments = run.batch(1)
    by_task = hints(assignments)
    assert {sum(map(bool, by_task[t.id])) for t in HARD} == {2}
    assert {sum(map(bool, by_task[t.id])) for t in EASY} == {0}
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
    trend = run.events.of("hard_samples")[-1]
    assert (trend["graduated"], trend["solved_by_hint"]) == (graduated, solved_by_hint)
    assert hinted_ids(third) == (set() if graduated else {t.id for t in HARD})


# ---- options


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"successes_below": 0}, "successes_below is 0; expected at least 1"),
        ({"hints": {"beam": 0}}, "beam is 0; expected 1 or more"),
        (
            {"hints": {"dev_size": 50, "budget": 50}},
            "budget is 50; expected at least 106, to score one hint",
        ),
        ({"distillation": {"low": 2, "high": 1}}, "low is 2.0 and high 1.0"),
    ],
)
def test_options_refuse_what_cannot_work(raw: dict[str, Any], message: str):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(P2OOptions).validate_python(raw)
    assert message in str(caught.value)


# ---- Phase 2


def test_the_epoch_ends_once():
    run = Run()
    run.batch(0)
    run.batch(0)
    assert run.policy.calls == []
    metrics = run.evolve(Progress(3, 1, 100))
    assert metrics == {
        "p2o/hard": 20.0,
        "p2o/newly_hard": 20.0,
        "p2o/graduated": 0.0,
        "p2o/solved_by_hint": 0.0,
        "p2o/withheld": 0.0,
    }
    state, calls, rows = run.strategy.state_dict(), len(run.policy.calls), len(run.events.rows)
    assert calls > 1
    assert run.evolve(Progress(3, 1, 100)) == {}
    assert run.evolve(Progress(4, 1, 100)) == {}
    assert run.strategy.state_dict() == state
    assert (len(run.policy.calls), len(run.events.rows)) == (calls, rows)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_skipped_phase_drops_the_hints_of_the_one_before_unless_they_are_kept(keeps: bool):
    run = Run(hints=replace(SMALL, keep_if_skipped=keeps))
    run.batch(0)
    hard_ids = {"q4", "q7", "q9"}  # one fewer than hard_set_min_count
    run.batch(1, lambda a, k: a.task.id not in hard_ids)
    pool, calls = run.pool, len(run.policy.calls)
    third = run.batch(2)
    (notice,) = run.events.of("notice")
    assert "3 hard questions, hard_set_min_count is 4" in notice["text"]
    assert ("the earlier ones are dropped" in notice["text"]) == (not keeps)
    assert (run.pool, len(run.policy.calls)) == (pool if keeps else None, calls)
    assert hinted_ids(third) == (hard_ids if keeps else set())
    assert len(run.events.of("hint_phase")) == 1
    run.batch(3)
    assert len(run.events.of("hint_phase")) == 2
    assert run.pool != pool


def test_no_rollout_sees_a_hint_that_was_derived_from_its_question():
    run = Run(hints=replace(SMALL, dev_size=4))
    few = [*HARD[:8], *EASY]  # so few that a minibatch of three is most of what is reflected on
    run.batch(0, tasks=few)
    withheld = set[str]()
    for epoch in (1, 2, 3):
        run.step += 1
        metrics = run.evolve(Progress(run.step, epoch, 100))
        assignments = run.batch(epoch, tasks=few)
        pool = HintPool(**run.pool)
        sources = dict(zip(pool.texts, pool.shown, strict=True))
        hinted = hinted_ids(assignments)
        assert hinted
        assert not any(a.task.id in sources[a.sampled.hint] for a in assignments)
        without = {task.id for task in HARD[:8]} - hinted
        assert metrics["p2o/withheld"] == len(without)
        withheld |= without
    assert withheld


# ---- a reflector that fails


@pytest.mark.parametrize(
    ("write", "keeps"), [(raising(LLMError("503")), True), (lambda n, prompt: "", False)]
)
def test_a_phase_that_brings_no_hint_is_not_the_last(write: Callable[[int, str], str], keeps: bool):
    """An outage leaves the hints of the phase before."""
    run = Run()
    run.batch(0)
    run.batch(1)
    pool = run.pool
    run.llm = Author(write)
    assert hinted_ids(run.batch(2)) == ({t.id for t in HARD} if keeps else set())
    assert (run.pool == pool) == keeps
    run.llm = Author(one_keyword_each)
    assert hinted_ids(run.batch(3)) == {t.id for t in HARD}
    phases = run.events.of("hint_phase_ended")
    assert [row["valid"] > 0 for row in phases] == [True, False, True]
    for row in phases:
        solved = {hint["text"]: hint["dev"] for hint in row["solved"]}
        assert len(solved) == row["accepted"] + 1
        covered = {i for text in row["covering_texts"] for i in solved[text]}
        assert row["solved_by_cover"] == len(covered) / SMALL.dev_size
        assert row["solved_without"] == len(solved[""]) / SMALL.dev_size


# ---- state


def test_a_state_saved_in_mid_epoch_continues_the_same():
    def succeeds(a: Assignment, k: int) -> bool:
        return a.task in EASY or a.task.id in {"q0", "q5", "q6", "q19"}

    author = Author(one_keyword_each)
    run = Run(llm=author)
    run.batch(0)
    run.batch(1, succeeds, TASKS[:9])
    saved = json.dumps(run.strategy.state_dict())
    copy = Run()
    copy.strategy.load_state_dict(json.loads(saved))
    assert json.dumps(copy.strategy.state_dict()) == saved
    copy.step = run.step
    copy.llm = Author(one_keyword_each, list(author.prompts))  # its replies are counted on
    for epoch, tasks in ((1, TASKS[9:]), (2, TASKS), (3, TASKS)):
        assert copy.batch(epoch, succeeds, tasks) == run.batch(epoch, succeeds, tasks)
    assert copy.strategy.state_dict() == run.strategy.state_dict()
    assert copy.policy.calls == run.policy.calls[-len(copy.policy.calls) :]
    trends = run.events.of("hard_samples")
    assert [t["hard"] for t in trends] == [20, 16, 16]


def test_draws_are_keyed_by_the_seed_and_the_epoch():
    original, twin, reseeded = Run(), Run(), Run(p2o(seed=2))
    for run in (original, twin, reseeded):
        run.batch(0)
    draws = hints(original.batch(1))
    assert draws == hints(twin.batch(1))
    assert draws != hints(reseeded.batch(1))
    # Neither the order of the questions nor the step of the epoch has a say.
    few = TASKS[8:4:-1]
    assert hints(twin.batch(1, tasks=few)) == {t.id: draws[t.id] for t in few}
    # The same hints and the same hard questions, but another epoch.
    original.strategy.load_state_dict({**original.strategy.state_dict(), "epoch": 7})
    assert hints(original.batch(7)) != draws
