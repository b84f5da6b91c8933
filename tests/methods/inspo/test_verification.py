import pytest

from cotune.methods.inspo.verification import Candidate, accept, verify
from cotune.types import Instruction
from tests.helpers import ScriptedRollout, make_tasks


def candidate(name: str, score: float | None = None, parent: float | None = 0.5) -> Candidate:
    return Candidate(
        name, f"text {name}", "i0", "reflection", "", score, parent if score is not None else None
    )


def test_one_call_same_questions_groups_apart():
    rollout = ScriptedRollout(lambda text: {"text a": 1.0, "text b": 0.0}.get(text, 0.5))
    tasks = make_tasks(40)
    parent = Instruction("i3", "parent")
    got = verify([candidate("a"), candidate("b")], parent, tasks, rollout)
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


def test_nothing_to_verify_is_an_error():
    with pytest.raises(ValueError, match="0 candidates"):
        verify([], Instruction("i0", "x"), make_tasks(1), ScriptedRollout(lambda _: 1.0))


def test_accept_takes_the_best_and_says_why_not():
    rows = [candidate("a", 0.4), candidate("b", 0.5), candidate("c", 0.9), candidate("d", 0.6)]
    accepted, rejected = accept(rows, 2)
    assert [c.id for c in accepted] == ["c", "d"]
    assert [(c.id, why) for c, why in rejected] == [
        ("b", "no vacancy left"),
        ("a", "below its parent"),
    ]


def test_a_tie_with_the_parent_is_accepted_and_ties_keep_their_order():
    accepted, rejected = accept([candidate("a", 0.5), candidate("b", 0.5)], 5)
    assert [c.id for c in accepted] == ["a", "b"]
    assert rejected == []


def test_unverified_candidates_are_accepted_in_order():
    accepted, rejected = accept([candidate("a"), candidate("b"), candidate("c")], 2)
    assert [c.id for c in accepted] == ["a", "b"]
    assert [c.id for c, _why in rejected] == ["c"]
    assert accepted[0].gain == 0.0
