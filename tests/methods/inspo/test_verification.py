from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from cotune.methods.inspo.verification import Candidate, accept, chance_of_less, verify
from cotune.types import Assignment, Instruction, StopReason, Trajectory
from tests.helpers import ScriptedRollout, make_tasks, make_trajectory


def candidate(name: str, score: float | None = None, parent: float | None = 0.5) -> Candidate:
    instruction = Instruction(name, f"text {name}", "i0", "reflection")
    return Candidate(instruction, score, parent if score is not None else None)


def test_one_call_same_questions_groups_apart():
    rollout = ScriptedRollout(lambda text: {"text a": 1.0, "text b": 0.0}.get(text, 0.5))
    tasks = make_tasks(40)
    parent = Instruction("i3", "parent")
    got, paid = verify([candidate("a"), candidate("b")], parent, tasks, rollout)
    assert paid == 120
    ((purpose, rows),) = rollout.calls
    assert purpose == "verify"
    assert [r.instruction_id for r in rows] == ["a"] * 40 + ["b"] * 40 + ["i3"] * 40
    assert [r.group for r in rows] == list(range(120))
    assert [r.task for r in rows] == tasks * 3
    assert all(r.sampled == r.trained for r in rows)
    assert [c.score for c in got] == [1.0, 0.0]
    assert got[0].parent_score == got[1].parent_score
    assert 0.2 < (got[0].parent_score or 0) < 0.8
    assert got[0].gain == pytest.approx(1.0 - (got[0].parent_score or 0))


@pytest.mark.parametrize("lost", [{"stop": StopReason.ENVIRONMENT_ERROR}, {"scored": False}])
def test_questions_with_an_environment_error_are_not_compared(lost: dict[str, Any]):
    tasks, parent = make_tasks(4), Instruction("i3", "parent")
    failing = {("text a", "q0"), ("parent", "q1"), *(("text b", f"q{i}") for i in range(4))}

    def rollout(
        assignments: Sequence[Assignment], *, purpose: str, greedy: bool = False
    ) -> list[Trajectory]:
        rewards = {"text a": 0.5, "text b": 1.0, "parent": 0.6}
        return [
            replace(make_trajectory(a, 0.0), **lost)
            if (a.sampled.instruction, a.task.id) in failing
            else make_trajectory(a, rewards[a.sampled.instruction])
            for a in assignments
        ]

    found, _ = verify([candidate("a"), candidate("b")], parent, tasks, rollout)
    assert [(c.score, c.parent_score) for c in found] == [(0.5, 0.6), (None, None)]
    accepted, rejected = accept(found, 2)
    assert accepted == []
    assert [(c.id, why) for c, why in rejected] == [
        ("a", "below its parent"),
        ("b", "not compared: environment errors"),
    ]


@pytest.mark.parametrize(
    ("reward", "unrewarded"), [(0.0, True), (-1.0, True), (0.2, True), (0.5, False), (1.0, False)]
)
def test_a_tie_without_any_success_says_nothing(reward: float, unrewarded: bool) -> None:
    def rollout(assignments: Sequence[Assignment], **_: object) -> list[Trajectory]:
        return [make_trajectory(a, reward) for a in assignments]

    tasks, parent = make_tasks(9), Instruction("i3", "parent")
    for race_for in (None, 1):
        (verified,), _ = verify([candidate("a")], parent, tasks, rollout, race_for)
        assert verified.unrewarded == unrewarded
        assert accept([verified], 1) == ([verified], [])


@pytest.mark.parametrize(
    ("scores", "vacancies", "accepted", "rejected"),
    [
        # The best are taken; the parent's score is 0.5.
        ((0.4, 0.5, 0.9, 0.6), 2, "cd", [("b", "no vacancy left"), ("a", "below its parent")]),
        ((0.5, 0.5), 5, "ab", []),  # ties with the parent, in order
        ((None, None, None), 2, "ab", [("c", "no vacancy left")]),  # unverified, in order
    ],
)
def test_who_is_accepted(
    scores: Sequence[float | None],
    vacancies: int,
    accepted: str,
    rejected: list[tuple[str, str]],
) -> None:
    candidates = [candidate(name, score) for name, score in zip("abcd", scores, strict=False)]
    best, others = accept(candidates, vacancies)
    assert "".join(c.id for c in best) == accepted
    assert [(c.id, reason) for c, reason in others] == rejected


# ---- races


def test_sign_flip_test_by_hand() -> None:
    # 1 win and 7 losses: 9 of 256 sign patterns have a sum this low.
    assert chance_of_less([1.0] + [-1.0] * 7) == pytest.approx(9 / 256, abs=0.005)
    assert chance_of_less([-1.0] * 5) == pytest.approx(1 / 32, abs=0.01)
    assert chance_of_less([0.5, -0.5, 0.0]) == 1.0
    assert chance_of_less([0.0] * 9) == 1.0


def raced(names: Sequence[str], vacancies: int) -> tuple[list[Candidate], list[int]]:
    """Race over 40 questions, in blocks of 8; return the candidates, and the rollouts of each block.

    "good" solves all questions, "bad" none, and the parent and "even" every second one.
    """
    tasks = make_tasks(40)
    chances = {"text bad": 0.0, "text good": 1.0}
    halves = {task.id: float(i % 2) for i, task in enumerate(tasks)}
    paid: list[int] = []

    def rollout(assignments: Sequence[Assignment], **_: object) -> list[Trajectory]:
        paid.append(len(assignments))
        rewards = [chances.get(a.sampled.instruction, halves[a.task.id]) for a in assignments]
        return [make_trajectory(a, r) for a, r in zip(assignments, rewards, strict=True)]

    parent = Instruction("i3", "parent")
    found, spent = verify([candidate(n) for n in names], parent, tasks, rollout, vacancies)
    assert spent == sum(paid)
    return found, paid


def test_a_race_ends_for_who_is_far_below_and_far_above() -> None:
    found, paid = raced(["bad", "good", "even"], vacancies=3)
    # After 8 questions, 4 differ: 1/16 is not below 0.05 / 4 looks. After 16, 8 do.
    assert paid == [32, 32, 16, 16, 16]
    assert [c.score for c in found] == [0.0, 1.0, 0.5]
    assert [c.parent_score for c in found] == [0.5, 0.5, 0.5]


def test_who_is_above_runs_on_while_others_compete_for_the_vacancy() -> None:
    _, paid = raced(["bad", "good", "even"], vacancies=1)
    assert paid == [32, 32, 24, 24, 24]


def test_a_race_that_is_decided_stops() -> None:
    _, paid = raced(["bad"], vacancies=1)
    assert paid == [16, 16]
