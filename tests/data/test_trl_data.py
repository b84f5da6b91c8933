"""Rows and tasks of data in TRL's form, and where its initial instruction stands."""

from collections.abc import Callable
from typing import Any

import pytest
from datasets import Dataset

from cotune.data.trl_data import read_rows, tasks_of
from cotune.environments.prompt_in_data import InstructionPlace, place_instruction
from tests.helpers import raises_line

Message = dict[str, str]


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


S = "You are a terse assistant."
CHATS: list[dict[str, Any]] = [
    {"prompt": [system(S), user(f"What is {i}+1?")], "answer": str(i + 1)} for i in range(4)
]


def test_rows_of_every_kind_are_the_same() -> None:
    dataset = Dataset.from_list(CHATS)
    assert read_rows(dataset, "train_dataset") == CHATS
    assert read_rows(CHATS, "train_dataset") == CHATS
    # A set format reaches the reward functions.
    dataset = Dataset.from_list([{**row, "numbers": [1, 2]} for row in CHATS])
    for kind in ("torch", "numpy"):
        rows = read_rows(dataset.with_format(kind), "train_dataset")
        assert [row["prompt"] for row in rows] == [row["prompt"] for row in CHATS]
        assert (rows[0]["numbers"].flatten() + 1).tolist() == [2, 3]
    # Rows need no prompt if an environment makes it.
    rows = read_rows([{"level": 3}], "train_dataset", needs_prompt=False)
    (task,) = tasks_of(rows, "train", "")
    assert (task.question, task.chat, dict(task.columns)) == ("", True, {"level": 3})


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Dataset.from_list(CHATS).to_iterable_dataset(), "train_dataset is a stream"),
        ([], "holds no rows"),
        ([{"question": "2+2?"}], 'row 1 has no column "prompt", only question'),
        ([{"prompt": []}], r"row 1: the prompt is \[\]"),
        ([{"prompt": "?", "image": "x.png"}], "has the column image; expected only text"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_on_is_refused_in_one_line(dataset: Any, message: str) -> None:
    with raises_line(match=message):
        read_rows(dataset, "train_dataset")


def test_every_row_is_a_task_with_all_its_columns() -> None:
    rows = [{**CHATS[0], "seed": seed} for seed in (0, 1, 1)]
    tasks = tasks_of(rows, "train", S)
    assert [dict(task.columns) for task in tasks] == rows
    assert len({task.id for task in tasks}) == 3
    assert tasks[2].id == f"{tasks[1].id}-1"
    assert tasks_of(rows[1:], "train", S)[0].id == tasks[1].id  # whatever stands before it
    assert {task.question for task in tasks} == {"What is 0+1?"}
    assert all(task.chat for task in tasks)


@pytest.mark.parametrize(
    ("columns", "answers", "solution"),
    [
        ({"ground_truth": 4.0}, ("4",), ""),
        ({"solution": "$\\frac12$"}, ("$\\frac12$",), ""),
        ({"answer": "2+2=4\n#### 4"}, ("4",), "2+2=4\n#### 4"),
        ({"answer": 4, "solution": "2+2=4"}, ("4",), "2+2=4"),
        ({"answer": [{"value": 4}]}, (), ""),
    ],
)
def test_only_plain_values_are_reference_answers(
    columns: dict[str, Any], answers: tuple[str, ...], solution: str
) -> None:
    (task,) = tasks_of([{"prompt": "2+2?", **columns}], "train", "")
    assert (task.answers, task.solution) == (answers, solution)


def place_of(
    prompt: Callable[[int], Any], instruction: str | None = None, needs: bool = True
) -> InstructionPlace:
    rows = [{"prompt": prompt(i)} for i in range(4)]
    return place_instruction(rows, instruction, needs, "INSPO")


@pytest.mark.parametrize(
    ("prompt", "instruction", "needs", "expected"),
    [
        # The system message of all rows, or else the whole prompt of all rows.
        (lambda i: [system(S), user(f"{i}?")], None, True, (S, S)),
        (lambda i: [system(S), user(f"{i}?")], None, False, (S, S)),
        (lambda _: [user("Play.\n")], None, True, ("Play.", "Play.")),
        # An instruction that all prompts have stands there, one that none has is added.
        (lambda i: [user(f"{S}\n\n{i}?")], S, True, (S, S)),
        (lambda i: [user(f"{S}\n\n{i}?")], f"\n{S}\n\n", True, (S, S)),
        (lambda i: [user(f"{i}?")], S, True, (S, "")),
        (lambda i: [system(f"Persona {i}"), user("?")], S, True, (S, "")),
        # The policy's own words are no place for an instruction.
        (lambda i: [user(f"{i}"), {"role": "assistant", "content": S}], S, True, (S, "")),
        # Without one, prompts stay as they are.
        (lambda i: [system(f"Persona {i}"), user("?")], None, False, ("", "")),
    ],
)
def test_the_place_of_the_instruction(
    prompt: Callable[[int], Any], instruction: str | None, needs: bool, expected: tuple[str, str]
) -> None:
    assert place_of(prompt, instruction, needs) == InstructionPlace(*expected)


@pytest.mark.parametrize(
    ("prompt", "instruction", "message"),
    [
        (lambda i: [user(f"{S * (i % 2)}{i}?")], S, "2 of 4 prompts lack that text, such as '0\\?'; expected it in all of them or in none"),
        (lambda i: [system(f"Persona {i}"), user("?")], None, "4 different system messages, such as 'Persona 0' and 'Persona 1'; .*" r"INSPO\(instruction=…\)"),
        (lambda i: [system(S), user("?")][i % 2 :], None, "2 different system messages, such as 'You are a terse assistant.' and none"),
        (lambda i: [user(f"What is {i}?")], " ", r"share no system message; give one as method=cotune.INSPO\(instruction=…\)$"),
    ],
)  # fmt: skip
def test_data_without_one_instruction_is_refused(
    prompt: Callable[[int], Any], instruction: str | None, message: str
) -> None:
    with raises_line(match=message):
        place_of(prompt, instruction)
