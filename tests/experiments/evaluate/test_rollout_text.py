"""What the console shows of rollouts."""

from typing import Any

from cotune.experiments.evaluate.rollout_text import (
    INSTRUCTION,
    OBSERVED,
    OWN,
    outcome_lines,
    rollout_text,
)
from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory, Turn
from tests.helpers import make_trajectory
from tests.scripted import CharacterCodec

TASK = Task("t", "q?", ("42",))
PROMPT = Prompt("Do. (or not)")


def trajectory(text: str, mask: str, prompt: str = "?", **fields: object) -> Trajectory:
    values: dict[str, Any] = {
        "reward": 0.0,
        "turns": (Turn("ab", "XY"), Turn("c", error="out of turns")),
        "stop": StopReason.TURN_LIMIT,
        "sampled_prompt_ids": tuple(map(ord, prompt)),
        "completion_ids": tuple(map(ord, text)),
        "mask": tuple(map(int, mask)),
    }
    return make_trajectory(Assignment(TASK, PROMPT, PROMPT, "i0", 0), **{**values, **fields})


def test_a_rollout_is_labelled_and_coloured_by_who_trains_on_its_tokens() -> None:
    text = rollout_text(trajectory("abXYc", "11001", "user: Do. (or not) q?"), CharacterCodec())
    assert text.plain == "user: Do. (or not) q?\n[policy] ab\n[masked] XY\n[policy] c"
    assert [(text.plain[s.start : s.end], s.style) for s in text.spans] == [
        ("Do. (or not)", INSTRUCTION),
        ("ab", OWN),
        ("XY", OBSERVED),
        ("c", OWN),
    ]
    # Nothing acts on a terminal.
    text = rollout_text(trajectory("a\x1b[31mb", "1" * 7, "\x1b[2J[red]q[/]"), CharacterCodec())
    assert text.plain == "[2J[red]q[/]\n[policy] a[31mb"


def test_the_outcome_says_reward_end_answer_and_errors() -> None:
    lines = outcome_lines(
        trajectory(
            "abXYc",
            "11001",
            reward=0.5,
            parts={"exact": 0.0, "brief": 5.0},
            answer="41\n",
            feedback="brief: too\nlong \x1b[1m",
        )
    )
    assert lines == [
        "reward 0.5 (exact 0, brief 5)",
        "truncated by limits.turns after 2 turns, 3 of 5 completion tokens are the policy's",
        "answer: 41; expected 42",
        "feedback: brief: too long [1m",
        "turn 2: out of turns",
    ]
    assert outcome_lines(trajectory("a", "1"))[2] == "answer: none; expected 42"
    cut = trajectory("a", "1", stop=StopReason.TURN_TOKENS)
    assert outcome_lines(cut)[1].startswith("truncated by limits.turn_tokens after ")
    assert outcome_lines(cut)[2] == "answer: none (cut off); expected 42"
