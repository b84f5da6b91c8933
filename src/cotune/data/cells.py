"""Values of a row: numbers and texts, accepted answers, chat messages; every form that data has is read here."""

import ast
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, cast

from cotune.errors import ConfigError
from cotune.utils.text import encodable, shorten

ANSWER_COLUMNS = (
    "answers", "answer", "golden_answers", "ground_truth", "final_answer",
    "reward_model.ground_truth.target", "reward_model.ground_truth",
)  # fmt: skip
"""Usual names of the accepted answers' column, in the order in which they are tried."""
ALIAS_COLUMNS = ("answer_aliases", "aliases")
"""Usual names of a column with more accepted answers."""

_ROLES = ("system", "user", "assistant")
# GSM8K's answers: reasoning, and the final answer on the last line.
_FINAL_LINE = re.compile(r"^#### *(?P<final>\S.*)\Z", re.MULTILINE)
_LONGEST_NUMBER = 25  # characters of a number that is written without an exponent


def plain_value(value: Any) -> Any:
    """Return a scalar, array or tensor as Python's own number or list; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def plain_text(value: object) -> str:
    """Return a text, finite number or boolean as text; "" for anything else.

    A number is the shortest text that reads back equal.

    >>> [plain_text(v) for v in (" a ", 100.0, 0.00001, 1e16, 1e300, Decimal("1.50"), float("inf"))]
    ['a', '100', '0.00001', '10000000000000000', '1e+300', '1.5', '']
    """
    is_single = type(value).__name__ in ("float16", "float32")
    # NumPy's text of a single-precision number is the shortest; as a double it would get more digits.
    value = Decimal(str(value)) if is_single else plain_value(value)
    if isinstance(value, str):
        return encodable(value.strip())
    if not isinstance(value, float | Decimal):
        return str(value) if isinstance(value, int) else ""
    if not math.isfinite(value):
        return ""
    digits = format(Decimal(str(value or 0)), "f")
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return digits if len(digits) <= _LONGEST_NUMBER or isinstance(value, Decimal) else str(value)


def reference_answers(value: Any) -> tuple[tuple[str, ...], str]:
    """Return the accepted answers in a value, and the reasoning of the first in GSM8K's form, "" without.

    A text, finite number or boolean, or a list of them without blank ones, holds answers.
    """
    members = cells_of(value)
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


def cells_of(value: Any) -> list[object]:
    """Return the members of a list or array; a list of anything else alone, with its type, which says its digits."""
    members = plain_value(value)
    return cast("list[object]", members) if isinstance(members, list) else [value]


def parse_list(cell: object) -> list[Any] | None:
    """Return the list that a text holds, in JSON or as Python writes it; None for anything else."""
    if not isinstance(cell, str) or not cell.strip().startswith("["):
        return None
    for parse in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            value: object = parse(cell.strip())
            return cast("list[Any]", value) if isinstance(value, list) else None
    return None


def parse_lists(cells: Sequence[object]) -> list[list[Any] | None] | None:
    """Return the lists in a column whose cells are all empty or lists of texts or chat messages, written as text.

    Else None: lists of numbers alone may be intervals or vectors, which are answers themselves.
    """
    lists = [parse_list(cell) for cell in cells]
    # An array has no truth value, so that it cannot be looked up in a tuple.
    is_empty = [cell is None or (isinstance(cell, str) and not cell) for cell in cells]
    if any(parsed is None and not empty for parsed, empty in zip(lists, is_empty, strict=True)):
        return None
    members = [member for parsed in lists for member in parsed or ()]
    hold_texts = all(isinstance(member, str | int | float) for member in members)
    hold_messages = all(isinstance(member, dict) and "role" in member for member in members)
    has_text = any(isinstance(member, str) for member in members)
    return lists if members and (hold_messages or (hold_texts and has_text)) else None


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
    last_role = messages[-1]["role"] if messages else "nothing"
    if last_role != "user":
        raise ConfigError(
            f'{place}: "{column}" ends with {last_role}; expected messages that end with the user\'s: '
            "leave out the policy's reply"
        )
    *before, (_, question) = [(message["role"], message["content"]) for message in messages]
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(
            f'{place}: "{column}" is {shorten(question)}; expected text, or chat messages that end '
            "with the user's"
        )
    context = tuple((role, encodable(content)) for role, content in before)
    return context, encodable(question.strip())


def check_messages(messages: Sequence[object], column: str, place: str) -> None:
    """Raise ConfigError for something that is not a chat message of text, or of tool calls."""
    for i, message in enumerate(messages):
        fields = cast("Mapping[str, Any]", message if isinstance(message, Mapping) else {})
        content: Any = fields.get("content")
        if isinstance(content, list):
            texts = [_part_text(part) for part in cast("list[object]", content)]
            is_text = all(isinstance(text, str) for text in texts)
        else:
            is_text = content is None or isinstance(content, str)
        if "role" not in fields or not is_text:
            raise ConfigError(
                f'{place}: message {i} of "{column}" is {shorten(message)}; expected {{role: …, content: …}}, '
                "and only text"
            )


def _part_text(part: object) -> object:
    fields = cast("Mapping[str, Any]", part if isinstance(part, Mapping) else {})
    return fields.get("text") if fields.get("type") == "text" else None


def flat_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without the fields that Arrow filled with None, its content as one text."""
    fields = {name: value for name, value in message.items() if value is not None}
    content = fields.get("content", "")
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in cast("list[Any]", content))
    return {**fields, "content": content}


def get_nested(row: Mapping[str, Any], column: str, default: object = None) -> Any:
    """Return a column's value; a dotted name that is not a column leads to a nested field.

    A row may have null in place of what holds the field, or an object written as JSON.
    """
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if isinstance(value, str) and value.lstrip().startswith("{"):
            with suppress(ValueError, RecursionError):
                value = json.loads(value)
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
