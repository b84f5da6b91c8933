from dataclasses import replace
from typing import Any

import pytest

from cotune.methods.text_evolution import example, feedback, read_fenced
from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory, Turn
from tests.helpers import make_trajectory
from tests.methods.p2o.hint_fakes import Policy, evolve, one_keyword_each
from tests.scripted import Author


def trajectory(reward: float, answer: str | None, **changes: Any) -> Trajectory:
    task = Task("q", "What is 48 + 37?", ("85", "85.0"))
    prompt = Prompt("Solve it.")
    made = make_trajectory(Assignment(task, prompt, prompt, "", 0), reward)
    return replace(made, **{"answer": answer, **changes})


@pytest.mark.parametrize(
    ("made", "said", "shown"),
    [
        (trajectory(1.0, "85"), "Correct.", ""),
        (trajectory(0.0, "75"), "Wrong: the final answer 75 is not correct.", " The correct answer is 85 or 85.0."),
        (
            trajectory(0.0, None, stop=StopReason.TOKEN_LIMIT),
            "Wrong: no final answer in the expected format was found. "
            "The response was ended by: token limit.",
            " The correct answer is 85 or 85.0.",
        ),
        (
            trajectory(0.0, None, turns=(Turn("a", error="no tag"), Turn("b", error="no tag"))),
            "Wrong: no final answer in the expected format was found. Errors on the way: no tag.",
            " The correct answer is 85 or 85.0.",
        ),
    ],
)  # fmt: skip
def test_feedback_names_what_was_wrong_and_the_truth_only_by_option(
    made: Trajectory, said: str, shown: str
):
    assert feedback(made, False) == said
    assert feedback(made, True) == said + shown
    task = replace(made.task, answers=())
    unanswered = replace(made, assignment=replace(made.assignment, task=task))
    assert feedback(unanswered, True) == said


def test_a_long_answer_is_shortened_since_the_response_is_shown_besides():
    said = feedback(trajectory(0.0, "8" * 30_000), False)
    assert said.startswith("Wrong: the final answer 888")
    assert "29500 characters left out" in said
    assert len(said) < 700


def test_feedback_of_reward_functions_follows():
    for made, verdict in ((trajectory(1.0, "85"), "Correct."), (trajectory(0.0, "8"), "Wrong: ")):
        said = feedback(replace(made, feedback="exact: Off by 3."), False)
        assert said.startswith(verdict)
        assert said.endswith("\nexact: Off by 3.")


@pytest.mark.parametrize("reflection", ["gepa", "single_turn"])
@pytest.mark.parametrize("show_answers", [False, True])
def test_prompts_hold_question_response_and_feedback(reflection: str, show_answers: bool):
    author = Author(one_keyword_each)
    evolve(Policy(), author, reflection=reflection, show_answers=show_answers)
    first = author.prompts[0]
    assert "Provide the new instructions within ``` blocks." in first
    assert first.count("Wrong: the final answer nothing is not correct.") == 3
    assert first.count("## Generated Outputs\nI say nothing") == 3
    assert first.count("The correct answer is secret") == 3 * show_answers
    wrong_only = [p for p in author.prompts if "Correct." not in p]
    assert wrong_only
    assert any("secret" in prompt for prompt in wrong_only) == show_answers


def test_a_long_response_is_shortened_in_the_middle():
    long = trajectory(0.0, None, turns=(Turn("a b " * 300 + "end"),))
    shown = example(long, False, 100)["Generated Outputs"]
    assert "characters left out" in shown
    assert shown.endswith("end")
    assert example(long, False, 2000)["Generated Outputs"] == long.full_text


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("Sure:\n```\nCarry.\n```\nDone.", ("Sure:", ["Carry."])),
        ("```text\nCarry.\n```", ("", ["Carry."])),
        ("<think>perhaps ```no```</think>\n```\nCarry.\n```", ("", ["Carry."])),
        ("<think>about <think> and </think> I\n```x```</think>\nWhy\n```\nDo.\n```", ("Why", ["Do."])),
        ("about\n```x```</think>\nWhy\n```\nDo.\n```", ("Why", ["Do."])),
        ("<think>on and on\n```\nDo.\n```", ("", [])),
        ("<think>perhaps ```no```", ("", [])),
        ("Carry.", ("", [])),
        ("```Carry.", ("", [])),
        ("```\n \n```", ("", [])),
        ("", ("", [])),
        ("<think>Put it in ``` blocks.</think>\n```\nhint\n```", ("", ["hint"])),
        ("<think>```\ndraft\n```</think>\n```\nhint\n```", ("", ["hint"])),
        ("So.\n```\nleft open", ("", [])),
        ("```\na\n``` and ```\nleft open", ("", [])),
    ],
)  # fmt: skip
def test_read_fenced(reply: str, expected: tuple[str, list[str]]):
    assert read_fenced(reply) == expected
