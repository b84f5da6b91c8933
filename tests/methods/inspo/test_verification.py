from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from cotune.methods.inspo.verification import Candidate, accept, verify
from cotune.types import Assignment, Instruction, StopReason, Trajectory
from tests.helpers import ScriptedRollout, make_tasks, make_trajectory


def candidate(name: str, score: float | None = None, parent: float | None = 0.5) -> Candidate:
    instruction = Instruction(name, f"text {name}", "i0", "reflection")
    return Candidate(instruction, score, parent if score is not None else None)


def test_one_call_same_questions_groups_apart():
    rollout = ScriptedRollout(lambda text: {"text a": 1.0, "text b": 0.0}.get(text, 0.5))
    tasks = make_tasks(40)
    parent = Instruction("i3", "parent")
    verified = verify([candidate("a"), candidate("b")], parent, tasks, rollout)
    ((purpose, rows),) = rollout.calls
    assert purpose == "verify"
    assert [r.instruction_id for r in rows] == ["a"] * 40 + ["b"] * 40 + ["i3"] * 40
    assert [r.group for r in rows] == list(range(120))
    assert [r.task for r in rows] == tasks * 3
    assert all(r.sampled == r.trained for r in rows)
    assert [c.score for c in verified] == [1.0, 0.0]
    assert verified[0].parent_score == verified[1].parent_score
    assert 0.2 < (verified[0].parent_score or 0) < 0.8
    assert verified[0].gain == pytest.approx(1.0 - (verified[0].parent_score or 0))


@pytest.mark.parametrize("change", [{"stop": StopReason.ENVIRONMENT_ERROR}, {"scored": False}])
def test_questions_with_an_environment_error_are_not_compared(change: dict[str, Any]):
    tasks, parent = make_tasks(4), Instruction("i3", "parent")
    failing = {("text a", "q0"), ("parent", "q1"), *(("text b", f"q{i}") for i in range(4))}

    def rollout(
        assignments: Sequence[Assignment], *, purpose: str, greedy: bool = False
    ) -> list[Trajectory]:
        rewards = {"text a": 0.5, "text b": 1.0, "parent": 0.6}
        return [
            replace(make_trajectory(a, 0.0), **change)
            if (a.sampled.instruction, a.task.id) in failing
            else make_trajectory(a, rewards[a.sampled.instruction])
            for a in assignments
        ]

    verified = verify([candidate("a"), candidate("b")], parent, tasks, rollout)
    assert [(c.score, c.parent_score) for c in verified] == [(0.5, 0.6), (None, None)]
    accepted, rejected = accept(verified, 2)
    assert accepted == []
    reasons = ["below its parent", "not compared: environment errors, or no reward"]
    assert [reason for _, reason in rejected] == reasons


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
    scores: Sequence[float | None], vacancies: int, accepted: str, rejected: list[tuple[str, str]]
) -> None:
    candidates = [candidate(name, score) for name, score in zip("abcd", scores, strict=False)]
    best, rejects = accept(candidates, vacancies)
    assert "".join(c.instruction.id for c in best) == accepted
    assert [(c.instruction.id, reason) for c, reason in rejects] == rejected
