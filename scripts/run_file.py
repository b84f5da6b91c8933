"""The pages about run files and suite files, generated from the configuration classes."""

import inspect
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from cotune.config.run_file import RunConfig
from cotune.experiments.compare.suite_file import SuiteConfig
from cotune.utils.validation import ByKind

_NAMES = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    Path: "path",
    type(None): "null",
    Any: "anything",
    object: "anything",
}
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")
_SHOWN = 60  # characters of a default
_LONG = 8  # words of a meaning that stands once

_CONFIGURATION = """# Run file

*Generated from the configuration classes.*

A run is one YAML file. Each field stands with its type, its default and its meaning. Defaults are the papers' values where
the papers give one; a field that may be null is null unless another default stands there. An unknown field is an error;
`cotune plan RUN.yaml` checks a file without training. If a section has several forms, `kind` selects one, and its title names
it: `strategy: inspo`.
"""

_SUITE = """# Suite file

*Generated from the configuration classes.*

`cotune compare` runs a suite, which is one YAML file ([how to](../how-to/comparing.md)). An unknown field is an error;
`cotune compare SUITE.yaml --dry-run` checks the file and every run file that it produces.
"""


@dataclass(frozen=True)
class Field:
    """One field of a section.

    Attributes:
        annotation: the type, without `Annotated`.
        bounds: of a number, such as "≥ 1".
        default: as written in YAML; None if the field is required.
        text: the description; "" if there is none.
    """

    name: str
    annotation: Any
    bounds: str
    default: str | None
    text: str


def fields_of(section: type) -> list[Field]:
    """Return the fields of a pydantic model or an options dataclass, in order; inherited ones come last."""
    if issubclass(section, BaseModel):
        return [_model_field(name, info) for name, info in section.model_fields.items()]
    hints, said = get_type_hints(section, include_extras=True), attributes_of(section)
    own = list(section.__annotations__)
    declared = sorted(
        fields(section), key=lambda f: own.index(f.name) if f.name in own else len(own)
    )
    return [
        _field(f.name, hints[f.name], _dataclass_default(f), said.get(f.name, ""))
        for f in declared
        if f.init
    ]


def attributes_of(section: type) -> dict[str, str]:
    """Return the texts of the "Attributes:" sections of a class and its bases, by name."""
    found: dict[str, str] = {}
    for base in reversed(section.__mro__):
        lines = inspect.cleandoc(base.__doc__ or "").splitlines()
        if "Attributes:" not in lines:
            continue
        names: list[str] = []
        for line in lines[lines.index("Attributes:") + 1 :]:
            if line and not line.startswith(" "):
                break
            if entry := _ENTRY.fullmatch(line.removeprefix("    ")):
                names = entry[1].split(", ")
                found |= dict.fromkeys(names, entry[2])
            elif line.strip():
                found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def sections(root: type = RunConfig) -> Iterator[tuple[str, type]]:
    """Yield (dotted path in the file, class) for every section, once for each kind.

    A class that is used in several places is yielded once, for the first.
    """
    seen: set[type] = set()
    waiting: list[tuple[str, type]] = [("", root)]
    while waiting:
        place, section = waiting.pop(0)
        if section in seen:
            continue
        seen.add(section)
        yield place, section
        below = [
            (f"{place}.{field.name}" if place else field.name, inner)
            for field in fields_of(section)
            for inner in _classes(field.annotation)
        ]
        waiting = [*below, *waiting]


def configuration_page() -> str:
    """Return the page with every field of a run file: type, default and meaning."""
    return _page(RunConfig, _CONFIGURATION)


def suite_page() -> str:
    """Return the same page for suite files."""
    return _page(SuiteConfig, _SUITE)


def _page(root: type, opening: str) -> str:
    titles = {section: _title(place, section) for place, section in sections(root)}
    parts = [opening]
    first_titles: dict[tuple[str, str], str] = {}
    for place, section in sections(root):
        depth = "#" * min(2 + place.count("."), 4)
        parts.append(f"{depth} {titles[section]}")
        if place:
            parts.append(escaped(_summary(section)))
        shown = [field for field in fields_of(section) if field.name != "kind"]
        lines = [_line(same, titles, first_titles, titles[section]) for same in _alike(shown)]
        parts.append("\n".join(lines) if lines else "No fields besides `kind`.")
    return "\n\n".join(parts) + "\n"


def _alike(shown: list[Field]) -> Iterator[list[Field]]:
    """Yield the fields in order, neighbours with the same type and meaning together."""
    for _, same in groupby(shown, key=lambda field: (field.annotation, field.bounds, field.text)):
        yield list(same)


def _line(
    same: list[Field],
    titles: Mapping[type, str],
    first_titles: dict[tuple[str, str], str],
    title: str,
) -> str:
    """Return the item of fields with one meaning; a meaning that an earlier section has is linked."""
    names = ", ".join(f"`{field.name}`" for field in same)
    defaults = ", ".join(filter(None, map(_default_text, same)))
    kind = "" if same[0].annotation is bool else _type_text(same[0], titles)
    kinds = ", ".join(filter(None, [kind, defaults]))
    meaning = escaped(_as_yaml(_meaning(same[0])))
    earlier = first_titles.setdefault((names, meaning), title)
    if earlier != title and len(meaning.split()) > _LONG:
        meaning = f"As in [{earlier}](#{_anchor(earlier)})."
    return f"- {names} ({kinds}): {meaning}"


def type_text(annotation: Any, titles: Mapping[type, str]) -> str:
    """Return a type in YAML terms; a section links to its description."""
    annotation = _bare(annotation)
    origin, inside = get_origin(annotation), get_args(annotation)
    if annotation in titles:
        title = titles[annotation]
        return f"[{kind_of(annotation) or title}](#{_anchor(title)})"
    if origin is Literal:
        return "/".join(f"`{yaml_text(value)}`" for value in inside)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_text(part, titles) for part in inside))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, value = (type_text(part, titles) for part in inside)
        return f"mapping of {key} to {value}"
    if origin is not None and inside:
        return f"list of {type_text(inside[0], titles)}"
    return _NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _bare(annotation: Any) -> Any:
    """Return the type without its metadata; of a section with kinds the union of their classes."""
    while get_origin(annotation) is Annotated:
        annotation, *notes = get_args(annotation)
        for note in notes:
            if isinstance(note, ByKind):
                annotation = Union[tuple(note.classes())]  # noqa: UP007
    return annotation


def _model_field(name: str, info: Any) -> Field:
    default = None if info.is_required() else yaml_text(info.default)
    if info.default is PydanticUndefined and info.default_factory is not None:
        default = yaml_text(info.default_factory())
    annotation = info.annotation
    if info.metadata:
        annotation = Annotated[annotation, *info.metadata]
    return _field(name, annotation, default, info.description or "")


def _field(name: str, annotation: Any, default: str | None, said: str) -> Field:
    notes = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    bounds = [
        f"{sign} {getattr(note, key):.10g}"
        for note in notes
        for key, sign in _BOUNDS.items()
        if getattr(note, key, None) is not None
    ]
    bare = _bare(annotation)
    return Field(name, bare, ", ".join(bounds), default, " ".join(said.split()))


def _dataclass_default(field: Any) -> str | None:
    if field.default_factory is not MISSING:
        return yaml_text(field.default_factory())
    return None if field.default is MISSING else yaml_text(field.default)


def _classes(annotation: Any) -> Iterator[type]:
    """Yield the section classes that a type consists of."""
    annotation = _bare(annotation)
    is_type = isinstance(annotation, type)
    if is_type and (is_dataclass(annotation) or issubclass(annotation, BaseModel)):
        yield annotation
    for part in get_args(annotation):
        yield from _classes(part)


def kind_of(section: type) -> str:
    """Return the value of `kind` that selects a section, or "" if it has none."""
    for field in fields_of(section):
        if field.name == "kind":
            # A kind without a default has to be named, and is the only one of its class.
            return field.default or str(get_args(field.annotation)[0])
    return ""


def _title(place: str, section: type) -> str:
    kind = kind_of(section)
    return (f"{place}: {kind}" if kind else place) or "The file"


def _anchor(title: str) -> str:
    """Return the anchor that both mkdocs and code hosts give a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _summary(section: type) -> str:
    return " ".join(inspect.cleandoc(section.__doc__ or "").split("\n\n")[0].split())


def _meaning(field: Field) -> str:
    """Return the description of a field, or the summary of its class if it has none."""
    if field.text:
        return field.text
    inner = list(_classes(field.annotation))
    return _summary(inner[0]) if len(inner) == 1 else ""


def undescribed(root: type = RunConfig) -> list[str]:
    """Return fields without a description, as "section.field"."""
    return [
        f"{place}.{field.name}".removeprefix(".")
        for place, section in sections(root)
        for field in fields_of(section)
        if field.name != "kind" and not _meaning(field) and not list(_classes(field.annotation))
    ]


def _as_yaml(text: str) -> str:
    """Return a description as a sentence, with values spelled as in YAML."""
    for python, value in {"None": "null", "True": "true", "False": "false"}.items():
        text = re.sub(rf"\b{python}\b", value, text)
    return re.sub(r"^(?!null\b)[a-z]{3,}\b", lambda word: word[0].capitalize(), text)


def _type_text(field: Field, titles: Mapping[type, str]) -> str:
    text = type_text(field.annotation, titles)
    if not field.bounds:
        return text
    number, *null = text.split(" or null")
    return f"{number} {field.bounds}{' or null' if null else ''}"


def _default_text(field: Field) -> str:
    """Return the default as code; "" if it is null, or that of a section's own fields."""
    if field.default is None:
        return "**required**"
    if field.default == "null":
        return ""
    whole = field.default == "" or field.default.startswith("{kind: ")
    if whole and len(list(_classes(field.annotation))) == 1:
        return ""
    return f"`{field.default}`"


def yaml_text(value: object) -> str:
    """Return a default as YAML; for a section, its kind or ""."""
    if isinstance(value, BaseModel) or is_dataclass(value):
        kind = getattr(value, "kind", "")
        return f"{{kind: {kind}}}" if kind else ""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        mantissa, _, exponent = f"{value:g}".partition("e")
        mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
        return f"{mantissa}e{int(exponent)}" if exponent else mantissa
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {yaml_text(part)}" for key, part in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(yaml_text(part) for part in value) + "]"
    text = " ".join(str(value).split())
    return (text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…") or '""'


def escaped(text: str) -> str:
    """Escape the text of a docstring so that it contains no accidental Markdown."""
    text = re.sub(r"^([#>+-])", r"\\\1", text, flags=re.MULTILINE)
    parts = text.split("`")
    parts[::2] = [re.sub(r"([<*\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts).replace("|", "\\|")
