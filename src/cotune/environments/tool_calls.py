"""Parsers of tool calls, in the forms of chat templates, from the text of a turn.

Nothing here raises on a model's text: a call that cannot be parsed is the turn's error.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from cotune.types import Calls, ToolCall
from cotune.utils.text import split_thoughts, without_thoughts

Schema = Mapping[str, Any]
Reader = Callable[[str, Sequence[Schema]], Calls]
"""Parses the text of a turn, without its EOS, given the schemas of the available tools."""

_TAG = re.compile(r"(</?tool_call>)")
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>")
_PARAMETER_END = "</parameter>"
_LLAMA = re.compile(r'\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"parameters"\s*:')
_ARGUMENTS = ("arguments", "parameters", "args", "input")
"""The usual names of a call's arguments."""
_ERROR_CHARS = 120


def read_hermes(text: str, tools: Sequence[Schema] = ()) -> Calls:
    """Parse JSON between <tool_call> and </tool_call>: Hermes, Qwen2.5, Qwen3; several a turn."""
    return _read_blocks(text, lambda block: call_from(json.loads(block)))


def read_xml(text: str, tools: Sequence[Schema] = ()) -> Calls:
    """Parse <function=…> with <parameter=…> in <tool_call>: Qwen3-Coder, Qwen3.5, Nemotron 3.

    Values are texts; the tools' schemas say which of them are numbers, lists, ….
    """
    return _read_blocks(text, lambda block: _read_function(block, tools))


def read_llama(text: str, tools: Sequence[Schema] = ()) -> Calls:
    """Parse a turn that is one JSON object with "name" and "parameters": Llama 3.1 and 3.2.

    JSON without these fields is an answer, not a call.
    """
    answer = without_thoughts(text).strip().removeprefix("<|python_tag|>").strip()
    try:
        value: Any = json.loads(answer) if answer.startswith("{") else None
    except (ValueError, RecursionError) as error:
        is_call = _LLAMA.match(answer) is not None
        return Calls(error=_reason(error)) if is_call else Calls(said=text.strip())
    if not isinstance(value, dict) or not {"name", "parameters"} <= value.keys():
        return Calls(said=text.strip())
    return _collect("", lambda: [call_from(cast("object", value))])


READERS: tuple[Reader, ...] = (read_hermes, read_xml, read_llama)
"""All parsers, in the order in which they are tried on a chat template."""


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
    message: dict[str, Any] = {"role": "assistant", "content": text if calls.error else calls.said}
    if calls.calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in calls.calls
        ]
    return message


def _collect(text: str, read: Callable[[], Iterable[ToolCall]]) -> Calls:
    """Return the calls that `read` gives; one that cannot be parsed is the turn's error."""
    try:
        return Calls(tuple(read()), said=text.strip())
    except (ValueError, RecursionError) as error:
        return Calls(error=_reason(error))


def _read_blocks(text: str, read: Callable[[str], ToolCall]) -> Calls:
    """Return the calls of all <tool_call> blocks."""
    thoughts, answer = split_thoughts(text)
    # Between the tags: text, block, text, … In one pass, since a policy may repeat a tag thousands
    # of times.
    parts = _TAG.split(answer)
    tags = parts[1::2]
    if len(tags) % 2 or tags != ["<tool_call>", "</tool_call>"] * (len(tags) // 2):
        return Calls(error="a <tool_call> is not closed, or closed twice")
    return _collect(thoughts + "".join(parts[::4]), lambda: map(read, parts[2::4]))


def _read_function(block: str, tools: Sequence[Schema]) -> ToolCall:
    """Parse <function=…>, whose parameters must not have other text between them."""
    function = _FUNCTION.fullmatch(block)
    if function is None:
        raise ValueError("expected <function=name> … </function>")
    name = function[1].strip()
    body = function[2]
    types = _types(name, tools)
    arguments: dict[str, Any] = {}
    position = 0
    while opening := _PARAMETER.match(body, position):
        end = body.find(_PARAMETER_END, opening.end())
        if end < 0:
            break
        # The template puts the value on lines of its own.
        value = body[opening.end() : end].removeprefix("\n").removesuffix("\n")
        key = opening[1].strip()
        arguments[key] = _convert(value, types.get(key))
        position = end + len(_PARAMETER_END)
    if body[position:].strip():
        raise ValueError("text between its parameters, or one that is not closed")
    return ToolCall(name, arguments)


def _types(name: str, tools: Sequence[Schema]) -> Mapping[str, Any]:
    """Return the properties of a tool's parameters; {} for an unknown tool."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            return function.get("parameters", {}).get("properties", {})
    return {}


def _convert(raw: str, schema: Mapping[str, Any] | None) -> Any:
    """Convert a parameter's text to its schema's type; return it unchanged if that fails."""
    schema = schema or {"type": "string"}
    if schema.get("nullable") and raw.strip() in ("null", "None"):
        return None
    if "enum" in schema:
        # Templates may write True as in Python or as in JSON.
        return next((v for v in schema["enum"] if raw in (str(v), json.dumps(v))), raw)
    if schema.get("type") == "string":
        return raw
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        # Templates may write True and None as in Python.
        return {"true": True, "false": False, "none": None}.get(raw.strip().lower(), raw)


def _reason(error: Exception) -> str:
    not_json = isinstance(error, json.JSONDecodeError)
    problem = f"not JSON ({error.msg})" if not_json else str(error)
    return " ".join(f"a tool call is not valid: {problem}".split())[:_ERROR_CHARS]
