"""The base of all option models, and validation errors in one line: field, value, expectation."""

import difflib
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, cast, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from cotune.utils.text import did_you_mean, hide_secrets

Path = tuple[str, ...]
"""A field by the names that lead to it: ("training", "steps")."""

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument", "invalid_key")
_NO_MAPPING = ("model_type", "dataclass_type", "model_attributes_type")
# Values below these may be secrets in the wrong place, so they are never shown.
_SECRET = ("llm", "endpoints")
_FIELD_NAME = re.compile(r"[a-z_]{1,40}")


class Model(BaseModel):
    """A frozen model that rejects unknown fields; a field's docstring is its description."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class TextOrFields(Model):
    """A model whose first field may be given alone, as a text or null."""

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, value: Any) -> Any:
        alone = isinstance(value, str) or value is None
        return {next(iter(cls.model_fields)): value} if alone else value


def describe(error: ValidationError, model: type[Any]) -> str:
    """Return the first problem of a run file as "field: what is wrong", and how many more there are.

    Args:
        error: what validating `model` raised.
        model: the class that was validated, whose fields misspelt names are compared with.
    """
    problems = error.errors(include_url=False)
    # An unknown field explains a missing one, so it goes first.
    first = min(problems, key=lambda problem: problem["type"] not in _UNKNOWN)
    text = _describe(cast(dict[str, Any], first), list(_fields(model)))
    if first["type"] in ("missing", "union_tag_not_found") and (
        kinds := _kinds(model, first["loc"])
    ):
        text += f": {', '.join(kinds)}"
    more = len(problems) - 1
    return f"{text} (and {more} more)" if more else text


def _describe(problem: dict[str, Any], paths: list[Path]) -> str:
    path, kind_of = _split(problem["loc"], paths)
    field = ".".join(path)
    kind = problem["type"]
    context = problem.get("ctx", {})
    secret = path[:1] != () and path[0] in _SECRET
    if kind in _UNKNOWN:
        if secret and not _FIELD_NAME.fullmatch(path[-1]):
            return f"{path[0]}: holds an unknown field, whose name is not shown as it may be a key; remove it"
        if path in paths and len(problem["loc"]) > len(path):
            return f"{field}: is not a field of {kind_of}, but of another kind; remove it"
        hidden_field = hide_secrets(field, guess=True)
        return f"{hidden_field}: unknown field{_suggestion(path, paths)}; remove it or correct its name"
    if kind == "missing" and (*path, "kind") in paths:
        return f"{field}: missing; expected {field}.kind, one of"
    if kind == "missing":
        return f"{field}: missing; it has no default"
    if kind == "union_tag_not_found":
        return f"{field}.kind: missing; expected one of"
    if kind == "union_tag_invalid":
        came = "" if secret else f"{_short(context['tag'])} is unknown; "
        kinds = re.findall(r"'([^']+)'", str(context["expected_tags"]))
        meant = "" if secret else did_you_mean(str(context["tag"]), kinds)
        return f"{field}.kind: {came}expected one of {context['expected_tags']}{meant}"
    came = "" if secret else f"; got {_short(problem['input'])}"
    if kind in _NO_MAPPING:
        names = dict.fromkeys(field_path[-1] for field_path in paths if field_path[:-1] == path)
        if "kind" in names:
            return f"{field}: expected {{kind: …}}{came}"
        if not names:
            return f"{field}: expected a text or fields below it{came}"
        return f"{field}: expected fields below it, such as {', '.join(list(names)[:3])}{came}"
    if kind == "too_short":
        return f"{field}: is empty; name at least {context['min_length']}"
    if kind == "value_error":
        return _own_message(path, hide_secrets(str(context["error"]), guess=True), paths)
    if kind == "tuple_type":
        return f"{field}: expected a list{came}"
    if kind == "path_type":
        return f"{field}: expected a path{came}"
    message = problem["msg"].replace("Input should be", "expected", 1)
    # pydantic's addition about text ("…, unable to parse string as an integer").
    message = message.partition(", unable to parse")[0]
    return f"{field}: {message}{came}"


def _own_message(path: Path, message: str, paths: list[Path]) -> str:
    """Complete the field name that starts a message of one of our own checks."""
    section = ".".join(path)
    if not section or message.startswith((f"{section}.", f"{section} ", f"{section}: ")):
        return message
    return f"{section}{'.' if (*path, message.split()[0]) in paths else ': '}{message}"


def _split(loc: tuple[int | str, ...], paths: list[Path]) -> tuple[Path, str]:
    """Return the path of a problem, and the innermost section with a kind as "SECTION.kind KIND"."""
    path = Path()
    kind_of = ""
    kinded = None
    for part in (str(part) for part in loc if part != "[key]"):
        kinds = paths.count((*path, "kind")) if kinded != path else 0
        # Below the first level a field "kind" may select nothing: what comes next is then a field.
        if kinds and (len(path) == 1 or (kinds > 1 and (*path, part) not in paths)):
            kind_of = f"{'.'.join(path)}.kind {part}"
            kinded = path
        else:
            path = (*path, part)
    return path, kind_of


def _suggestion(path: Path, paths: list[Path]) -> str:
    """Return " (did you mean FIELD?)" for a misspelt or misplaced field, if that can be guessed."""
    section = path[:-1]
    name = path[-1]
    near = difflib.get_close_matches(name, [p[-1] for p in paths if p[:-1] == section], n=1)
    elsewhere = [p for p in paths if p[-1] == name]
    meant = [(*section, near[0])] if near else elsewhere
    return f" (did you mean {'.'.join(meant[0])}?)" if meant else ""


def _fields(model: Any, section: Path = ()) -> Iterator[Path]:
    """Yield every field of a model or options class, including those of all kinds of a section."""
    for name, annotation in get_type_hints(model).items():
        if name.startswith(("_", "model_")):
            continue
        yield (*section, name)
        for inner in _classes(annotation):
            yield from _fields(inner, (*section, name))


def _classes(annotation: Any) -> Iterator[type]:
    """Yield the models and options classes in an annotation."""
    if isinstance(annotation, type) and (
        is_dataclass(annotation) or issubclass(annotation, BaseModel)
    ):
        yield annotation
    for part in get_args(annotation):
        yield from _classes(part)


def _kinds(model: type[Any], loc: tuple[int | str, ...]) -> list[str]:
    """Return the kinds that a section of the run file can have; none if it has no kinds."""
    section = get_type_hints(model).get(str(loc[0])) if len(loc) == 1 else None
    literals = (get_args(get_type_hints(options).get("kind")) for options in _classes(section))
    return [kind for kinds in literals for kind in kinds]


def _short(value: object) -> str:
    try:
        text = hide_secrets(repr(value), guess=True)
    except (ValueError, RecursionError):  # an integer of thousands of digits, deep brackets
        return "a value that is too long to show"
    return text if len(text) <= 80 else f"{text[:77]}..."
