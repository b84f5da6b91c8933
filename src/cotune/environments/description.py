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
_TEXT_CHARS = 600  # limit of a tool's description, and of a parameter's
_CUT = " …"

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
    return _cut(text, DESCRIPTION_CHARS)


def described_tools(schemas: Sequence[Schema]) -> str:
    """Return signatures, docstrings and parameters of tools, from their JSON schemas; "" for none.

    If that is longer than DESCRIPTION_CHARS, the parameters are left out, then all but each tool's
    first line, then all but the signatures.
    """
    if not schemas:
        return ""
    functions = [schema.get("function", schema) for schema in schemas]
    shown = ""
    for form in (_whole, _without_parameters, _first_line, _signature):
        shown = "\n".join((_CALLS, *map(form, functions)))
        if len(shown) <= DESCRIPTION_CHARS:
            break
    return shown


def _whole(function: Schema) -> str:
    lines = [_without_parameters(function)]
    for name, schema in _parameters(function).items():
        if said := _one_line(schema.get("description")):
            lines.append(f"    {name}: {_cut(said, _TEXT_CHARS)}")
    return "\n".join(lines)


def _without_parameters(function: Schema) -> str:
    said = _cut(_one_line(function.get("description")), _TEXT_CHARS)
    return f"{_signature(function)}: {said}" if said else _signature(function)


def _first_line(function: Schema) -> str:
    first = str(function.get("description") or "").strip().partition("\n")[0]
    return f"{_signature(function)}: {_cut(first, 120)}" if first else _signature(function)


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
    inner = function.get("parameters")
    return cast(Schema, inner) if isinstance(inner, Mapping) else {}


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


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - len(_CUT)].rstrip() + _CUT
