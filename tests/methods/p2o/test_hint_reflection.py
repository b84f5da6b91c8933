from dataclasses import replace
from typing import Any

import pytest

from cotune.methods.p2o.hint_evolution import read_hint
from cotune.methods.text_evolution import (
    View,
    estimated_tokens,
    example,
    feedback,
    fitting_prompt,
    gepa_prompt,
)
from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory, Turn
from tests.helpers import make_trajectory
from tests.methods.p2o.hint_fakes import Author, Policy, evolve, one_keyword_each


def trajectory(reward: float, answer: str | None, **changes: Any) -> Trajectory:
    task = Task("q", "What is 48 + 37?", ("85", "85.0"))
    prompt = Prompt("Solve it.")
    made = make_trajectory(Assignment(task, prompt, prompt, "", 0), reward)
    return replace(made, **{"answer": answer, **changes})


@pytest.mark.parametrize(
    ("made", "said", "shown"),
    [
        (trajectory(1.0, "85"), "Correct.", ""),
        (
            trajectory(0.0, "75"),
            "Wrong: the final answer 75 is not correct.",
            " The correct answer is 85 or 85.0.",
        ),
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
)
def test_feedback_names_what_was_wrong_and_the_truth_only_by_option(
    made: Trajectory, said: str, shown: str
):
    assert feedback(made, View()) == said
    assert feedback(made, View(show_answers=True)) == said + shown
    task = replace(made.task, answers=())
    unanswered = replace(made, assignment=replace(made.assignment, task=task))
    assert feedback(unanswered, View(show_answers=True)) == said


def test_a_long_answer_is_shortened_since_the_response_is_shown_besides():
    said = feedback(trajectory(0.0, "8" * 30_000), View(tokens=2000))
    assert said.startswith("Wrong: the final answer 888")
    assert "29500 characters left out" in said
    assert len(said) < 700


def test_feedback_of_reward_functions_follows():
    for made, verdict in ((trajectory(1.0, "85"), "Correct."), (trajectory(0.0, "8"), "Wrong: ")):
        said = feedback(replace(made, feedback="exact: Off by 3."), View())
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


def test_responses_are_shortened_only_as_far_as_the_reflectors_context_asks():
    texts = ["a b " * 3000 + "end", "short", "c d " * 9000 + "end"]
    rollouts = [trajectory(0.0, None, turns=(Turn(text),)) for text in texts]

    def prompt(tokens: int) -> str:
        return fitting_prompt(lambda made: gepa_prompt("", made), rollouts, View(tokens=tokens))

    assert all(text in prompt(View().tokens) for text in texts)  # 24,000 tokens of 30,720
    cut = prompt(10_000)
    assert 9_900 < estimated_tokens(cut) <= 10_000
    assert cut.count("characters left out") == cut.count(" end\n") == 2  # the two long ones
    assert "\nshort\n" in cut
    # The one that is not the longest keeps its whole text.
    assert (texts[0] in prompt(20_000), texts[2] in prompt(20_000)) == (True, False)
    assert estimated_tokens(prompt(1)) < 1000
    assert example(rollouts[0], View(), 100)["Generated Outputs"].endswith("end")


def test_the_limit_of_a_reflection_prompt_is_an_option():
    author = Author(one_keyword_each)
    evolve(Policy(), author, reflection_tokens=1)
    assert "I say" not in author.prompts[0]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("carry the digits", 5),
        ("NASA 😀", 5),
        ("x = 1234\n", 7),
        ("\\frac{3}{8}", 8),
        ("答案", 4),
        ("ü", 1),
        ("  ", 1),
        ("x" + " " * 9 + "y", 4),
    ],
)
def test_tokens_are_estimated_by_hand(text: str, tokens: int):
    assert estimated_tokens(text) == tokens


def test_what_counts_as_a_success_is_told():
    assert feedback(trajectory(0.4, "85"), View(solved_at=0.3)) == "Correct."
    assert feedback(trajectory(0.6, "85"), View(solved_at=0.7)).startswith("Wrong:")


@pytest.mark.parametrize(
    ("reply", "hint"),
    [
        ("Sure:\n```\nCarry.\n```\nDone.", "Carry."),
        ("```text\nCarry.\n```", "Carry."),
        ("<think>perhaps ```no```</think>\n```\nCarry.\n```", "Carry."),
        ("<think>perhaps ```no```", "<think>perhaps ```no```"),
        ("perhaps ```no```</think>\n```\nCarry.\n```", "Carry."),
        ("Carry.", "Carry."),
        ("```Carry.", ""),
        ("", ""),
    ],
)
def test_read_hint(reply: str, hint: str):
    assert read_hint(reply) == hint
