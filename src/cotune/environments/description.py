"""Descriptions of an environment for proposers: its tools and protocol, in plain text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cotune.protocols import Environment

DESCRIPTION_CHARS = 4000
"""The most characters that a proposer is shown."""

_CALLS = (
    "The agent calls these tools in the form that its chat template shows it; several calls in a "
    "turn are allowed, and what they return comes before its next turn. A turn without a call is its "
    "final answer."
)


def description_of(environment: Environment) -> str:
    """Return an environment's own `description`, else that of its tools; "" if it has neither.

    It is cut at DESCRIPTION_CHARS characters.
    """
    description: str | None = getattr(environment, "description", None)
    text = describe_tools(environment.tools) if description is None else description.strip()
    return text if len(text) <= DESCRIPTION_CHARS else f"{text[: DESCRIPTION_CHARS - 2].rstrip()} …"


def describe_tools(schemas: Sequence[Mapping[str, Any]]) -> str:
    """Return the JSON schemas of tools, one a line; "" for none.

    If that is longer than DESCRIPTION_CHARS, only names and descriptions are shown.
    """
    if not schemas:
        return ""
    functions = [schema.get("function", schema) for schema in schemas]
    text = "\n".join(
        [_CALLS, *(json.dumps(function, ensure_ascii=False) for function in functions)]
    )
    if len(text) <= DESCRIPTION_CHARS:
        return text
    return "\n".join([_CALLS, *(f"- {f.get('name')}: {f.get('description')}" for f in functions)])
