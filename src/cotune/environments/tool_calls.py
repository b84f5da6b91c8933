"""Tool calls as Hermes and Qwen write them: JSON between <tool_call> and </tool_call>.

Nothing here raises on a model's text: a call that cannot be parsed is the turn's error.
"""

import json
import re
from typing import Any, cast

from cotune.types import Calls, ToolCall
from cotune.utils.text import split_thoughts

_TAG = re.compile(r"(</?tool_call>)")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
"""The usual names of a call's arguments."""
_ERROR_CHARS = 120


def read_hermes(text: str) -> Calls:
    """Parse the calls in the text of a turn, without its EOS. A call within a thought is none."""
    thoughts, answer = split_thoughts(text)
    # Between the tags: text, block, text, … In one pass, since a policy may repeat a tag thousands
    # of times.
    parts = _TAG.split(answer)
    tags = parts[1::2]
    if len(tags) % 2 or tags != ["<tool_call>", "</tool_call>"] * (len(tags) // 2):
        return Calls(error="a <tool_call> is not closed, or closed twice")
    try:
        calls = tuple(call_from(json.loads(block)) for block in parts[2::4])
    except (ValueError, RecursionError) as error:
        not_json = isinstance(error, json.JSONDecodeError)
        problem = f"not JSON ({error.msg})" if not_json else str(error)
        reason = " ".join(f"a tool call is not valid: {problem}".split())
        return Calls(error=reason[:_ERROR_CHARS])
    return Calls(calls, text=(thoughts + "".join(parts[::4])).strip())


def call_from(value: object) -> ToolCall:
    """Return the call of `{"name": …, "arguments": {…}}`; ValueError says what is wrong with it.

    Other usual names of the arguments are as good, and so is JSON in a text.
    """
    if not isinstance(value, dict):
        raise ValueError('expected {"name": …, "arguments": {…}}')
    fields = cast("dict[str, Any]", value)
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError('"name" is missing')
    values = [fields[key] for key in _ARGUMENTS if fields.get(key) is not None]
    arguments: Any = values[0] if values else dict[str, Any]()
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        raise ValueError('"arguments" is no object')
    return ToolCall(name, cast("dict[str, Any]", arguments))


def turn_message(calls: Calls, text: str) -> dict[str, Any]:
    """Return a turn as TRL's chat message: its calls and the rest, or all its text if they cannot be read."""
    message: dict[str, Any] = {"role": "assistant", "content": text if calls.error else calls.text}
    if calls.calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in calls.calls
        ]
    return message
