"""Values of a row: numbers and texts, accepted answers, chat messages; every form that data has is read here."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

from cotune.errors import ConfigError
from cotune.utils.text import encodable, shorten

ANSWER_COLUMNS = (
    "answers", "answer", "golden_answers", "ground_truth", "final_answer",
    "reward_model.ground_truth.target", "reward_model.ground_truth",
)  # fmt: skip
"""Usual names of the accepted answers' column, in the order in which they are tried."""

_ROLES = ("system", "user", "assistant")
# GSM8K's answers: reasoning, and the final answer on the last line.
_FINAL_LINE = re.compile(r"^#### *(?P<final>\S.*)\Z", re.MULTILINE)


def plain_value(value: Any) -> Any:
    """Return a scalar, array or tensor as Python's own number or list; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def plain_text(value: object) -> str:
    """Return a text, finite number or boolean as text; "" for anything else.

    >>> [plain_text(v) for v in (" a ", 100.0, 0.5, True, float("inf"))]
    ['a', '100', '0.5', 'True', '']
    """
    value = plain_value(value)
    if isinstance(value, str):
        return encodable(value.strip())
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int | float | Decimal) else ""


def reference_answers(value: Any) -> tuple[tuple[str, ...], str]:
    """Return the accepted answers in a value, and the reasoning of the first in GSM8K's form, "" without.

    A text, finite number or boolean, or a list of them without blank ones, holds answers.
    """
    value = plain_value(value)
    members = cast("list[object]", value) if isinstance(value, list) else [value]
    if any(isinstance(member, list | Mapping) for member in members):
        return (), ""
    answers: list[str] = []
    reasoning = ""
    for text in filter(None, map(plain_text, members)):
        final = _FINAL_LINE.search(text)
        answers.append(final["final"].strip() if final else text)
        if final and not reasoning:
            reasoning = text
    return tuple(answers), reasoning


def read_messages(
    value: object, column: str, place: str
) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return the messages before a question, as (role, content), and the question, of a text or of chat messages."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": value}]
    if isinstance(value, list):
        check_messages(cast("list[object]", value), column, place)
        messages = [flat_message(message) for message in cast("list[Any]", value)]
    for i, message in enumerate(messages):
        if message["role"] not in _ROLES or message.get("tool_calls"):
            raise ConfigError(
                f'{place}: message {i} of "{column}": is of role {message["role"]!r} or a tool call; '
                f"expected text of {', '.join(_ROLES)}: leave out tool calls"
            )
    question = messages[-1]["content"] if messages and messages[-1]["role"] == "user" else None
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(
            f'{place}: "{column}" is {shorten(value)}; expected text, or chat messages that end '
            "with the user's: leave out the policy's reply"
        )
    context = tuple((m["role"], encodable(m["content"])) for m in messages[:-1])
    return context, encodable(question.strip())


def check_messages(messages: Sequence[object], column: str, place: str) -> None:
    """Raise ConfigError for something that is not a chat message of text, or of tool calls."""
    for i, message in enumerate(messages):
        fields = cast("Mapping[str, Any]", message if isinstance(message, Mapping) else {})
        if "role" not in fields or not isinstance(fields.get("content"), str | None):
            raise ConfigError(
                f'{place}: message {i} of "{column}" is {shorten(message)}; expected {{role: …, content: …}}, '
                "and only text"
            )


def flat_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with a content, and without the other fields that Arrow filled with None."""
    return {"content": ""} | {name: value for name, value in message.items() if value is not None}


def get_nested(row: Mapping[str, Any], column: str, default: object = None) -> Any:
    """Return a column's value; a dotted name that is not a column leads to a nested field.

    A row may have null in place of what holds the field.
    """
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = cast("Mapping[str, Any]", value)[part]
    return value


def list_names(names: Iterable[str]) -> str:
    """Return the first column names, for a message."""
    texts = list(names)
    text = ", ".join(texts[:12])
    return f"{text}, …" if len(texts) > 12 else text or "none"
