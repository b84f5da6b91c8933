"""Values of a row: numbers and texts, accepted answers, chat messages; every form that data has is read here."""

import ast
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

from cotune.errors import ConfigError

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
        return value.strip()
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

    They are a text, finite number or boolean, or a list of them, of which blank ones are dropped; anything
    else holds none.
    """
    value = plain_value(value)
    members = cast("list[object]", value) if isinstance(value, list) else [value]
    texts = [text for text in map(plain_text, members) if text]
    if any(isinstance(member, list | Mapping) for member in members):
        return (), ""
    finals = [_FINAL_LINE.search(text) for text in texts]
    reasoning = next((t for t, final in zip(texts, finals, strict=True) if final), "")
    return tuple(
        final["final"].strip() if final else text for text, final in zip(texts, finals, strict=True)
    ), reasoning


def parse_lists(cells: Sequence[object]) -> list[object] | None:
    """Return the lists in a column whose cells are all lists written as text, in JSON or as Python writes them.

    Returns:
        None unless each cell is empty or a list, and they hold texts or chat messages: lists of numbers
        alone may be intervals or vectors, which are answers themselves.
    """
    lists: list[object] = []
    for cell in cells:
        if cell is None or cell == "":
            lists.append(None)
            continue
        if not isinstance(cell, str) or not cell.strip().startswith("["):
            return None
        try:
            value = json.loads(cell)
        except (ValueError, RecursionError):
            try:
                value = ast.literal_eval(cell.strip())
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                return None
        lists.append(value)
    members = [member for value in lists for member in cast("list[object]", value or ())]
    hold_texts = all(isinstance(m, str | int | float) for m in members)
    hold_messages = all(isinstance(m, dict) and "role" in m for m in members)
    has_text = any(isinstance(m, str) for m in members)
    return lists if members and ((hold_texts and has_text) or hold_messages) else None


def read_messages(
    value: object, column: str, place: str
) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return the messages before a question, as (role, content), and the question.

    Args:
        value: a text, or chat messages that end with the user's.
        column, place: the column and the row, named in errors.
    """
    messages = [{"role": "user", "content": value}]
    if isinstance(value, list):
        check_messages(cast("list[object]", value), column, place)
        messages = [flat_message(message) for message in cast("list[Any]", value)]
    for i, message in enumerate(messages):
        if message["role"] not in _ROLES or message.get("tool_calls"):
            raise ConfigError(
                f'{place}: message {i} of "{column}": is of role {message["role"]!r} or a tool call; '
                f"expected text of {', '.join(_ROLES)}: leave out tool calls"
            )
    if not messages or messages[-1]["role"] != "user":
        last = messages[-1]["role"] if messages else "nothing"
        raise ConfigError(
            f'{place}: "{column}" ends with {last}; expected messages that end with the user\'s: '
            "leave out the policy's reply"
        )
    *before, last_message = messages
    question: object = last_message["content"]
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(
            f'{place}: "{column}" is {shortened(question)}; expected text, or chat messages that end '
            "with the user's"
        )
    context = tuple((str(m["role"]), str(m["content"])) for m in before)
    try:
        "".join([question, *(content for _, content in context)]).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f'{place}: "{column}" cannot be encoded as UTF-8 ({error.reason}); fix the row'
        ) from error
    return context, question.strip()


def check_messages(messages: Sequence[object], column: str, where: str) -> None:
    """Raise ConfigError for something that is not a chat message of text, or of tool calls."""
    for i, message in enumerate(messages):
        place = f'{where}: message {i} of "{column}"'
        fields = _fields(message)
        if "role" not in fields:
            raise ConfigError(f"{place}: {shortened(message)}; expected {{role: …, content: …}}")
        content: object = fields.get("content")
        if not isinstance(content, str | list | None):
            raise ConfigError(f"{place}: content is {shortened(content)}; expected text")
        for part in cast("list[object]", content) if isinstance(content, list) else ():
            part_fields = _fields(part)
            kind = part_fields.get("type", type(part).__name__)
            if kind != "text" or not isinstance(part_fields.get("text"), str):
                raise ConfigError(f"{place}: holds content of type {kind}; expected only text")


def _fields(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def flat_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without the fields that Arrow filled with None, its content as one text."""
    fields = {name: value for name, value in message.items() if value is not None}
    content = fields.get("content", "")
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in cast("list[Any]", content))
    return {**fields, "content": content}


def nested(row: Mapping[str, Any], column: str, default: object = None) -> Any:
    """Return a column's value; a dotted name that is not a column leads to a nested field.

    A row may have null in place of what holds the field, or an object written as JSON.
    """
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if isinstance(value, str) and value.lstrip().startswith("{"):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                return default
        if value is None:
            return None
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = cast("Mapping[str, Any]", value)[part]
    return value


def shortened(value: object) -> str:
    """Return a value's repr, of at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def listed(names: Iterable[str]) -> str:
    """Return the first column names, for a message."""
    texts = list(names)
    text = ", ".join(texts[:12])
    return f"{text}, …" if len(texts) > 12 else text or "none"
