"""Descriptions of an environment for proposers: its tools and protocol, in plain text."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from cotune.errors import ConfigError
from cotune.protocols import Environment

DESCRIPTION_CHARS = 4000
"""The most characters that a proposer is shown."""

_CALLS = (
    "The agent calls these tools in the form that its chat template shows it; several calls in a "
    "turn are allowed, and what they return comes before its next turn. A turn without a call is its "
    "final answer."
)

Schema = Mapping[str, Any]


def description_of(environment: Environment) -> str:
    """Return an environment's own `description`, else that of its tools; "" if it has neither.

    It is cut at DESCRIPTION_CHARS characters.

    Raises:
        ConfigError: `description` is neither a text nor None.
    """
    own = getattr(environment, "description", None)
    if own is not None and not isinstance(own, str):
        raise ConfigError(
            f"{type(environment).__name__}.description is {type(own).__name__}; expected a text for "
            "the LLM that proposes, or None"
        )
    text = described_tools(environment.tools) if own is None else own.strip()
    return text if len(text) <= DESCRIPTION_CHARS else f"{text[: DESCRIPTION_CHARS - 2].rstrip()} …"


def described_tools(schemas: Sequence[Schema]) -> str:
    """Return signatures, docstrings and parameters of tools, from their JSON schemas; "" for none.

    If that is longer than DESCRIPTION_CHARS, all but each tool's signature is left out.
    """
    if not schemas:
        return ""
    functions = [schema.get("function", schema) for schema in schemas]
    text = "\n".join((_CALLS, *map(_whole, functions)))
    if len(text) > DESCRIPTION_CHARS:
        text = "\n".join((_CALLS, *map(_signature, functions)))
    return text


def _whole(function: Schema) -> str:
    text = _one_line(function.get("description"))
    lines = [f"{_signature(function)}: {text}" if text else _signature(function)]
    for name, schema in _parameters(function).items():
        if text := _one_line(schema.get("description")):
            lines.append(f"    {name}: {text}")
    return "\n".join(lines)


def _signature(function: Schema) -> str:
    """Return `- price(article: string, pieces: integer (optional)) -> number`."""
    required = cast("Sequence[str]", _inner(function).get("required") or ())
    parameters = [
        f"{name}: {_type(schema)}{'' if name in required else ' (optional)'}"
        for name, schema in _parameters(function).items()
    ]
    returned = function.get("return")
    gives = f" -> {_type(cast(Schema, returned))}" if isinstance(returned, Mapping) else ""
    return f"- {function.get('name', '')}({', '.join(parameters)}){gives}"


def _inner(function: Schema) -> Schema:
    return cast(Schema, function.get("parameters") or {})


def _parameters(function: Schema) -> Mapping[str, Schema]:
    return _inner(function).get("properties") or {}


def _type(schema: Schema) -> str:
    """Return a type in a word or two, without an object's fields."""
    if "enum" in schema:
        return " or ".join(repr(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    kind = schema.get("type", "any")
    kinds = [kind] if isinstance(kind, str) else list(kind)
    if kinds == ["array"] and isinstance(schema.get("items"), Mapping):
        kinds = [f"array of {_type(cast(Schema, schema['items']))}"]
    return " or ".join([*kinds, *(["null"] if schema.get("nullable") else [])])


def _one_line(text: object) -> str:
    return " ".join(str(text or "").split())
