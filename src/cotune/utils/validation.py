"""The base of all option models, and validation errors in one line: field, value, expectation."""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Any, cast, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticKnownError, core_schema

from cotune.utils.importing import kinds_with
from cotune.utils.text import did_you_mean, encodable, hide_secrets, shorten

Path = tuple[str, ...]
"""A field by the names that lead to it: ("training", "steps")."""

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument", "invalid_key")
_NO_SECTION = ("union_tag_not_found", "model_type", "dataclass_type", "model_attributes_type")
# Values below these may be secrets in the wrong place, so they are never shown.
_SECRET = ("llm",)
# Where pydantic's own words would name a Python type.
_WORDS = {"tuple_type": "a list", "path_type": "a path", "too_short": "{min_length} or more items"}
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


# Hashed by identity: typing hashes the parts of a type, and `built_in` may be a dict.
@dataclass(frozen=True, eq=False)
class ByKind:
    """Marks a section whose `kind` names its options class: `Annotated[Any, ByKind(…)]`.

    A class is loaded only when a file names it.

    Attributes:
        built_in: cotune's own kinds.
        options_of: returns the options class of a kind; ConfigError: its package cannot be loaded.
        group: the entry-point group in which packages add kinds; "" if they cannot.
    """

    built_in: Iterable[str]
    options_of: Callable[[str], type[Any]]
    group: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self._read, core_schema.any_schema())

    def _read(self, value: Any) -> Any:
        is_mapping = isinstance(value, Mapping)
        fields = cast("Mapping[str, Any]", value)
        if not ("kind" in fields if is_mapping else hasattr(value, "kind")):
            # The error has no other field for the kinds.
            expected = ", ".join(map(repr, kinds_with(self.group, self.built_in)))
            raise PydanticKnownError("union_tag_not_found", {"discriminator": expected})
        kind = fields["kind"] if is_mapping else value.kind
        # A list, as a file may give a kind that has no hash. Packages are searched for other kinds only.
        if kind not in (kinds := list(self.built_in)):
            kinds = kinds_with(self.group, kinds)
        if kind not in kinds:
            expected = ", ".join(map(repr, kinds))
            tag = encodable(str(kind))
            tags = {"discriminator": "kind", "tag": tag, "expected_tags": expected}
            raise PydanticKnownError("union_tag_invalid", tags)
        return _adapter(self.options_of(kind)).validate_python(value)

    def classes(self) -> list[type[Any]]:
        """Return the options classes of cotune's own kinds."""
        return [self.options_of(kind) for kind in self.built_in]


@cache
def _adapter(options: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(options)


def describe(error: ValidationError, model: type[Any]) -> str:
    """Return the first problem as "field: what is wrong", and how many more there are.

    Misspelt names are compared with the fields of the model that was validated.
    """
    problems = error.errors(include_url=False)
    # An unknown field explains a missing one, so it goes first.
    first = min(problems, key=lambda problem: problem["type"] not in _UNKNOWN)
    text = _describe(cast(dict[str, Any], first), list(_fields(model)))
    more = len(problems) - 1
    return f"{text} (and {more} more)" if more else text


def _describe(problem: dict[str, Any], paths: list[Path]) -> str:
    path = tuple(str(part) for part in problem["loc"] if part != "[key]")
    field = ".".join(path)
    kind = problem["type"]
    context = problem.get("ctx", {})
    is_secret = path[:1] != () and path[0] in _SECRET
    if kind in _UNKNOWN:
        if is_secret and not _FIELD_NAME.fullmatch(path[-1]):
            return f"{path[0]}: holds an unknown field, whose name is not shown as it may be a key; remove it"
        if path in paths:
            return f"{field}: is a field of another kind; remove it"
        hidden_field = hide_secrets(field, guess=True)
        return f"{hidden_field}: unknown field{_suggestion(path, paths)}; remove it or correct its name"
    if kind == "missing":
        return f"{field}: missing; it has no default"
    if kind == "value_error":
        return _own_message(path, hide_secrets(str(context["error"]), guess=True), paths)
    if kind == "union_tag_invalid":
        tag = context["tag"]
        kinds = re.findall(r"'([^']+)'", str(context["expected_tags"]))
        expected = f"expected one of {context['expected_tags']}"
        if is_secret:
            return f"{field}.kind: {expected}; what came is not shown, as it may be a key"
        meant = did_you_mean(str(tag), kinds)
        return f"{field}.kind: {shorten(tag, guess=True)} is unknown; {expected}{meant}"
    value = "" if is_secret else f"; got {shorten(problem['input'], guess=True)}"
    if kind in _NO_SECTION:
        if kinds := context.get("discriminator"):
            return f"{field}: expected {{kind: …}} with one of {kinds}{value}"
        # Without the numbers of a list's items.
        section = [name for name in path if not name.isdigit()]
        first_field = next((below[-1] for below in paths if [*below[:-1]] == section), "…")
        return f"{field}: expected fields below it, as in {{{first_field}: …}}{value}"
    if kind in _WORDS:
        return f"{field}: expected {_WORDS[kind].format(**context)}{value}"
    message = problem["msg"].replace("Input should be", "expected", 1)
    # pydantic's addition about text ("…, unable to parse string as an integer").
    return f"{field}: {message.partition(', unable to parse')[0]}{value}"


def _own_message(path: Path, message: str, paths: list[Path]) -> str:
    """Complete the field name that starts a message of one of our own checks."""
    section = ".".join(path)
    if not section or message.startswith((f"{section}.", f"{section} ", f"{section}: ")):
        return message
    return f"{section}{'.' if (*path, message.split()[0]) in paths else ': '}{message}"


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
    for name, annotation in get_type_hints(model, include_extras=True).items():
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
    parts = annotation.classes() if isinstance(annotation, ByKind) else get_args(annotation)
    for part in parts:
        yield from _classes(part)
