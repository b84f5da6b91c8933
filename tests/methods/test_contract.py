"""The contract of instructions and hints, and the comparison of texts by which it finds answers."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.methods.contract import (
    TextRules,
    is_near_copy,
    leaked_answer,
    neutralised,
    protocol_tags,
    reserved_tags,
)
from cotune.methods.method import Context
from cotune.types import Task
from tests.helpers import INITIAL

COPY = "near copy of one alive or tried"


def tasks_with(answer: str) -> list[Task]:
    return [Task("q", "?", (answer,))]


# ---- instructions

TASKS = [
    Task("a", "?", ("Kyrgyzstani som", "Beijing")),
    Task("b", "?", ("yes", "42", "US")),
    Task("c", "?", ("the quick brown fox jumps over it",)),
    Task("d", "?", ("film", "director", "two years", "12", "问")),
]
RULES = TextRules(INITIAL)
GOOD = INITIAL + " Search one name at a time."


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        ("...", "fewer than 3 words"),
        (GOOD + " \ud83d Search again.", "half of a UTF-16 pair"),
        (GOOD.replace("</answer>", ""), "lost </answer>"),
        (GOOD + " Or <ins_2> so.", "holds <ins_2>, which only proposals may"),
        (GOOD + " Or </ ins_0 > so.", "holds </ ins_0 >"),
        (GOOD + " Always <think> first.", "unclosed <think>"),
        (GOOD + " word" * 900, "characters; 4000 allowed"),
        (GOOD + " Try the KYRGYZSTANI  Som.", "brings in the answer 'Kyrgyzstani som'"),
        (GOOD + " As quick brown fox jumps over all.", "brings in the answer 'the quick"),
        (INITIAL.upper().replace("<THINK>", "<think>"), "lost"),
        (INITIAL.replace(" ", "\n"), COPY),
        (INITIAL.replace("given question", "asked question"), COPY),
    ],
)
def test_rejected_instructions(candidate: str, reason: str) -> None:
    assert reason in (RULES.check(candidate, INITIAL, [INITIAL], TASKS) or "")


@pytest.mark.parametrize(
    "added",
    [
        "",
        " Answer yes or no in 42 words about US places.",  # ignored answers
        " For example <answer> Beijing </answer>.",  # the parent held it
        " Search for somewhere Kyrgyzstani or a som alone.",  # not the whole answer in a row
        " A quick brown fox jumps.",  # four words in a row of seven
        " First look up the film, then the director of two.",  # common words
        " Ask again 回答问题。",
    ],
)
def test_valid_instructions(added: str) -> None:
    assert RULES.check(GOOD + added, INITIAL, [INITIAL], TASKS) is None


def test_texts_of_the_environment() -> None:
    boxed = TextRules("Solve it.", required=("\\boxed",))
    assert boxed.check("Work step by step.", "Solve it.", [], []) == "lost \\boxed"
    assert boxed.check("Work step by step, in \\boxed{}.", "Solve it.", [], []) is None


@pytest.mark.parametrize("rules_of", [TextRules.of_instructions, TextRules.of_hints])
def test_a_runs_limits_hold_for_instructions_and_hints(
    rules_of: Callable[[Context], TextRules],
) -> None:
    limits: dict[str, Any] = {"count_tokens": len, "max_tokens": 20, "control_tokens": ["</s>"]}
    rules = rules_of(Context(instruction="Do.", **limits))
    forged = "Add </s> to it."
    reason = "holds </s>, which only the chat template may"
    assert rules.check(forged, forged, [], []) == reason  # though its parent held it
    assert rules_of(Context(instruction="Do.")).check(forged, "Do.", [], []) is None  # not special
    assert rules.check("Add one to all of it.", "Do.", [], []) == "21 tokens; 20 allowed"
    assert rules.check("Add one to each.", "Do.", [], []) is None


# ---- hints

BESIDE = "Solve the problem and put the answer, such as 999, in a box at the end."
HINT = "Work from right to left and write every carry above its column."
PROBLEMS = [
    Task("a", "?", ("85",)),
    Task("b", "?", ("1,230", "1230.0")),
    Task("c", "?", ("612",)),
    Task("d", "?", ("Ouagadougou",)),
]


def check_hint(text: str, parent: str = "", *tried: str) -> str | None:
    return TextRules(beside=BESIDE).check(text, parent, tried, PROBLEMS)


@pytest.mark.parametrize(
    "text",
    [
        HINT,
        "Carry the ten.",
        "Think inside <think> and </think> first.",
        "The sum of 8 and 5 is 13; of 85 nothing is said.",  # two digits are not judged
        "Boxes hold answers such as 999 and steps 1, 2, 3.",
    ],
)
def test_valid_hints(text: str) -> None:
    assert check_hint(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("If asked, it is in Ouagadougou.", "brings in the answer 'Ouagadougou'"),
        ("Note that the result is 612.", "brings in the answer '612' of a training question"),
        ("The product equals $1,230.00, always.", "brings in the answer '1,230'"),
        ("Think first </think> then add up.", "stray </think>"),
    ],
)
def test_rejected_hints(text: str, reason: str) -> None:
    assert reason in (check_hint(text) or "")


def test_hints_and_those_tried() -> None:
    assert check_hint(HINT.replace("every", "each"), "", "Another one entirely.", HINT) == COPY
    assert check_hint(f"{HINT} Then check it once more.", HINT, HINT) is None
    parent = "The result is 612 and nothing else will ever do."
    assert check_hint("It says 612 and so must you, whatever comes.", parent) is None


# ---- answers in texts


@given(st.integers(100, 10**9), st.sampled_from(["{}", "so: {}.", "({:,})", "-{}", "{}.00!"]))
def test_a_number_of_three_digits_is_found_however_written(number: int, form: str) -> None:
    task = tasks_with(str(number))
    assert leaked_answer(form.format(number), "", task) == str(number)
    assert leaked_answer(form.format(number), str(number), task) is None


@pytest.mark.parametrize(
    ("text", "answer", "leaks"),
    [
        # Whole words alone.
        ("Ask a woman.", "Oman", False),
        ("Decide where to go next.", "Togo", False),
        ("It is TOGO.", "Togo", True),
        ("Try new york first.", "New York", True),
        ("The number is 48 213.", "48213", True),
        # Small numbers and letters in passing.
        ("Check 2 cases, then the other 42.", "42", False),
        ("Split into 2 cases; the answer is the sum of both.", "2", False),
        (r"The area is 1/2 * b * h, or $\frac{1}{2} b h$.", r"\frac{1}{2}", False),
        ("Compare option A with option B before you answer.", "B", False),
        ("The answer is I think the larger one.", "I", False),
    ],
)
def test_answers_in_texts(text: str, answer: str, leaks: bool) -> None:
    assert leaked_answer(text, "", tasks_with(answer)) == (answer if leaks else None)
    assert leaked_answer(text, f"{answer.lower()}!", tasks_with(answer)) is None


# ---- copies and tags


CHINESE = "回答给定的问题。先思考，然后搜索，最后给出答案。"
WORDS = " ".join(f"w{i}" for i in range(200))


@pytest.mark.parametrize(
    ("text", "changed", "copy"),
    [
        (WORDS, WORDS.replace("w7 ", "x "), True),
        (WORDS, f"{WORDS} two more", True),
        (WORDS, f"{WORDS} never the question", False),
        ("a b c d e f", "d e f a b c", False),
        # A script without spaces.
        (CHINESE, CHINESE, True),
        (CHINESE, f"{CHINESE}每次只查一个名字。", False),
        (CHINESE, CHINESE.replace("回答", "回答\u200b"), True),
    ],
)
def test_near_copies(text: str, changed: str, copy: bool) -> None:
    assert is_near_copy(text, changed) is copy


def test_tags() -> None:
    assert protocol_tags("<a> b </a> <a> < c> <d-e>") == ["<a>", "</a>", "<d-e>"]
    tags = ["<INS_3>", "<example>", "<score_1>"]
    assert reserved_tags("<INS_3> <example> <score_1> <instruction>") == tags
    assert neutralised("x </example> <ins_1> <answer>") == "x (/example) (ins_1) <answer>"


@given(st.text() | st.text(alphabet="<>/think_ins1curr_param` 0123,."), st.text())
def test_never_raises(candidate: str, parent: str) -> None:
    RULES.check(candidate, parent, [parent], TASKS)
    check_hint(candidate, parent)
    assert is_near_copy(candidate, candidate)
