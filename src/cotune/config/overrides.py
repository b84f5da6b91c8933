"""Override fields of a run file on the command line: `--set training.steps=600`."""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import yaml

from cotune.errors import ConfigError
from cotune.utils.field_yaml import FieldLoader

_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")
# Errors repeat only text that looks like one of our fields; other text may be a misplaced key.
_SHOWN = re.compile(r"[a-z][a-z_]{0,39}(\.[a-z0-9_]{1,40}){0,7}")


def with_overrides(raw: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return a run file's plain data with some fields set; `raw` is not modified.

    Each assignment is `FIELD=VALUE`: the field by its dotted path, the value as YAML. A section that the file lacks is
    added. Another `kind` drops the section's other fields in the file, and is set first. Otherwise a later assignment
    wins. Raises ConfigError: no `=`, no field before it, no YAML after it, or a field below one that is not a section.
    The message never repeats what comes after `=`: it may be a key.
    """
    changed = copy.deepcopy(dict(raw))
    for path, value in sorted(map(_parse, assignments), key=lambda pair: pair[0][-1] != "kind"):
        _set(changed, path, value)
    return changed


def merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return `first` changed by `second`: nested mappings are merged.

    A section that names another `kind` replaces the first one's.
    """
    result = dict(first)
    for key, value in second.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            section = cast("dict[str, Any]", old)
            change = cast("dict[str, Any]", value)
            if change.get("kind", section.get("kind")) == section.get("kind"):
                result[key] = merge(section, change)
                continue
        result[key] = value
    return result


def _parse(assignment: str) -> tuple[tuple[str, ...], Any]:
    field, equals, text = assignment.partition("=")
    field = field.strip()
    option = f"--set{_safe_name(field)}"
    if not equals or not _FIELD.fullmatch(field):
        wrong = "does not begin with a field" if equals else "has no '='"
        raise ConfigError(f"{option} {wrong}; expected FIELD=VALUE, as in training.steps=600")
    try:
        return tuple(field.split(".")), yaml.load(text, FieldLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError(
            f"{option}: what follows '=' is not YAML; quote a text that YAML would misread, as in --set "
            "'name=\"a: b\"'"
        ) from None


def _safe_name(field: str) -> str:
    return f" {field}" if _SHOWN.fullmatch(field) else ""


def _set(section: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for depth, name in enumerate(path[:-1], 1):
        below = section.get(name)
        if below is None:
            below = section[name] = {}
        if not isinstance(below, dict):
            holder = _safe_name(".".join(path[:depth])).strip() or "the field above"
            raise ConfigError(
                f"--set{_safe_name('.'.join(path))}: {holder} holds a value, which has no fields; "
                f"set {holder} as a whole"
            )
        section = below
    if path[-1] == "kind" and section.get("kind", value) != value:
        section.clear()
    section[path[-1]] = value
