"""Changes of a run file's plain data: nested mappings, merged section by section."""

from collections.abc import Mapping
from typing import Any, cast


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """`first` with changes; nested mappings are merged, sections of another kind replaced."""
    result = dict(first)
    for key, value in second.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            section, change = cast("dict[str, Any]", old), cast("dict[str, Any]", value)
            if change.get("kind", section.get("kind")) == section.get("kind"):
                result[key] = merged(section, change)
                continue
        result[key] = value
    return result


def expanded(changes: object) -> object:
    """Dotted keys written out: {"training.steps": 1} becomes {"training": {"steps": 1}}.

    What is no mapping with text keys is left to be refused by who reads it.
    """
    if not isinstance(changes, Mapping):
        return changes
    result: dict[str, Any] = {}
    for key, value in cast("Mapping[Any, Any]", changes).items():
        parts = key.split(".") if isinstance(key, str) else [key]
        below = expanded(value) if isinstance(value, Mapping) else value
        for part in reversed(parts[1:]):
            below = {part: below}
        result = merged(result, {parts[0]: below})
    return result
