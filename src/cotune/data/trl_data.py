"""Rows of a data set in TRL's form, `prompt` and any other columns, and the tasks that they make."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from cotune.data.cells import (
    ANSWER_COLUMNS,
    check_messages,
    flat_message,
    get_nested,
    list_names,
    plain_text,
    plain_value,
    reference_answers,
)
from cotune.data.rows import check_rows
from cotune.data.splits import number_repeats, sha
from cotune.errors import ConfigError
from cotune.types import Task
from cotune.utils.text import shorten

_IMAGE_COLUMNS = ("image", "images")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def read_rows(dataset: Any, name: str, needs_prompt: bool = True) -> list[dict[str, Any]]:
    """Read the rows of a data set as GRPOTrainer takes it; a set format such as "torch" is kept.

    Args:
        dataset: a `datasets.Dataset`, or a list of rows.
        name: the argument that it was given as, which starts error messages.
        needs_prompt: whether each row needs a `prompt`; an environment can make it instead.

    Raises:
        ConfigError: several splits at once, a stream, no rows, images, or a
            prompt that is missing or neither text nor chat messages; names the row, from 1.
    """
    if hasattr(dataset, "__iter__") and not hasattr(dataset, "__len__"):
        raise ConfigError(
            f"{name} is a stream; expected a datasets.Dataset or a list of rows, such as list(data.take(1000))"
        )
    rows = [dict(row) for row in check_rows(dataset, name)]
    if not rows:
        raise ConfigError(f"{name} holds no rows; expected one for each question")
    if images := [column for column in rows[0] if column in _IMAGE_COLUMNS]:
        raise ConfigError(
            f"{name} has the column {images[0]}; expected only text, which is all that cotune trains "
            "on: remove the column, or use trl.GRPOTrainer"
        )
    for i, row in enumerate(rows, 1):
        if "prompt" in row or needs_prompt:
            _check_prompt(row, f"{name}, row {i}")
    chats = [not isinstance(row["prompt"], str) for row in rows if "prompt" in row]
    if len(set(chats)) > 1:
        raise ConfigError(
            f"{name} has texts and chat messages ({sum(chats)} of {len(chats)}) as prompts; expected "
            "one form: write every prompt as messages, [{'role': 'user', 'content': …}]"
        )
    return rows


def _check_prompt(row: dict[str, Any], place: str) -> None:
    """Raise ConfigError for a row whose prompt is neither text nor a list of messages."""
    if "prompt" not in row:
        raise ConfigError(
            f'{place} has no column "prompt", only {list_names(row)}; expected a text or chat '
            "messages there, as for GRPOTrainer: rename the questions' column"
        )
    # NumPy's format makes an array of messages.
    prompt: object = plain_value(row["prompt"])
    row["prompt"] = prompt
    if isinstance(prompt, list) and prompt:
        check_messages(cast("list[object]", prompt), "prompt", place)
    elif not isinstance(prompt, str):
        raise ConfigError(
            f"{place}: the prompt is {shorten(cast(object, prompt))}; expected text or messages"
        )


def messages_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return copies of the chat messages of a row's prompt; a text is one message of the user.

    A row without a prompt has one empty message, as in TRL.
    """
    prompt = row.get("prompt", "")
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [flat_message(message) for message in prompt]


def last_question(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the last message of the user; without any, the last one."""
    questions = [message for message in messages if message["role"] == "user"]
    return questions[-1] if questions else messages[-1]


def find_holders(messages: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return the messages in which the instruction `text` stands: all with it of the first one's role.

    A question may quote a system message, and an example's question may repeat a preamble.
    """
    if not text:
        return []
    holders = [
        m for m in messages if m["role"] not in ("assistant", "tool") and text in m["content"]
    ]
    return [message for message in holders if message["role"] == holders[0]["role"]]


def question_of(messages: Sequence[dict[str, Any]], text: str) -> str:
    """Return the text that identifies a question for people and proposers, without the instruction."""
    message = last_question(messages)
    has_text = any(message is holder for holder in find_holders(messages, text))
    content = str(message["content"])
    return (content.replace(text, "") if has_text else content).strip()


def tasks_of(rows: Sequence[Mapping[str, Any]], split: str, text: str) -> list[Task]:
    """Turn each row into a task that keeps all its columns.

    An id is the split and a hash of the row; of equal rows the later ones are numbered.

    Args:
        text: the initial instruction as the prompts have it; "" if it is added to them.
    """
    hashes = [sha(json.dumps(row, default=_make_stable, skipkeys=True))[:12] for row in rows]
    ids = number_repeats([f"{split}-{digest}" for digest in hashes], "-")
    tasks: list[Task] = []
    for row, id in zip(rows, ids, strict=True):
        answers, solution = _read_reference(row)
        tasks.append(
            Task(
                id=id,
                question=question_of(messages_of(row), text),
                answers=answers,
                solution=solution,
                chat=not isinstance(row.get("prompt", []), str),
                columns=row,
            )
        )
    return tasks


def _read_reference(row: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """Return the accepted answers of a row and its reference solution, () and "" without.

    The answers stand in a column with a usual name. If there are none, the solution is the answer.
    """
    columns = (reference_answers(get_nested(row, name)) for name in ANSWER_COLUMNS)
    answers, reasoning = next((column for column in columns if column[0]), ((), ""))
    if not answers:
        return reference_answers(row.get("solution"))
    return answers, plain_text(row.get("solution")) or reasoning


def _make_stable(value: Any) -> Any:
    """Return a column's value in a form that is the same in every process, for a hash."""
    if isinstance(value, set | frozenset):
        return sorted(map(str, cast("set[Any]", value)))
    return _ADDRESS.sub("", str(plain_value(value)))
