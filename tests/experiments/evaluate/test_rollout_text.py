"""What the console shows of prompts and rollouts."""

from cotune.experiments.evaluate.rollout_text import (
    OBSERVED,
    OWN,
    completion_text,
    outcome_lines,
    prompt_text,
    segments,
    shared_lines,
)
from cotune.testing import CharacterCodec
from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory, Turn

TASK = Task("t", "q?", ("42",))
PROMPT = Prompt("do")


def trajectory(text: str, mask: str, **fields: object) -> Trajectory:
    ids = tuple(ord(c) for c in text)
    values = {
        "turns": (Turn("ab", "XY"), Turn("c", error="out of turns")),
        "stop": StopReason.TURN_LIMIT,
        **fields,
    }
    return Trajectory(
        Assignment(TASK, PROMPT, PROMPT, "i0", 0),
        sampled_prompt_ids=(1,),
        prompt_ids=(1,),
        completion_ids=ids,
        mask=tuple(int(c) for c in mask),
        logprobs=(0.0,) * len(ids),
        **values,  # type: ignore[arg-type]
    )


def test_tokens_are_coloured_by_who_trains_on_them() -> None:
    text = completion_text(trajectory("abXYc", "11001"), CharacterCodec())
    assert text.plain == "abXYc"
    assert [(text.plain[s.start : s.end], s.style) for s in text.spans] == [
        ("ab", OWN),
        ("XY", OBSERVED),
        ("c", OWN),
    ]


def test_segments_are_runs_of_equal_masks() -> None:
    assert list(segments([], [])) == []
    assert list(segments([1, 2, 3], [0, 0, 1])) == [(False, [1, 2]), (True, [3])]


def test_a_long_beginning_of_a_prompt_is_shown_once() -> None:
    tools = "system\n# Tools\n{price}\n{multiply}\nuser\n"
    assert shared_lines(f"{tools}What is it?\nassistant\n", f"{tools}Who?\nassistant\n") == 5
    assert shared_lines(f"{tools}Who?\n", "") == 0
    assert shared_lines("user\nBe brief.\n\nWho?\n", "user\nBe brief.\n\nWhat?\n") == 0
    assert shared_lines(tools, tools) == 4  # a prompt is never left out as a whole


def test_what_a_terminal_would_act_on_is_left_out() -> None:
    shown = completion_text(trajectory("a\x1b[31mb", "1" * 7), CharacterCodec())
    assert shown.plain == "a[31mb"
    assert prompt_text("say \x1b[2J[red]do[/red]", "do").plain == "say [2J[red]do[/red]"


def test_the_instruction_is_marked_in_the_prompt() -> None:
    text = prompt_text("user: Be brief. (or not)\n\nq?", "Be brief. (or not)")
    (span,) = text.spans
    assert text.plain[span.start : span.end] == "Be brief. (or not)"
    assert prompt_text("user: q?", "").spans == []


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


def test_without_colours_each_run_of_tokens_is_labelled() -> None:
    text = completion_text(trajectory("abXYc", "11001"), CharacterCodec(), labelled=True)
    assert text.plain == "\n[policy] ab\n[masked] XY\n[policy] c"
