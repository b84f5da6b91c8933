"""The JSON schema of the run file, for editors that check and complete YAML."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel

from cotune.config.run_file import RunConfig
from cotune.environments import registry as environments
from cotune.environments.instruction_config import InstructionConfig
from cotune.methods import registry as methods
from cotune.utils.importing import registered
from cotune.utils.validation import TextOrFields

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ENTRY = re.compile(r"(?P<names>\w+(?:, \w+)*): ")


def run_schema() -> dict[str, Any]:
    """Return the schema of the run file, shorthands included.

    Descriptions are the fields' docstrings; of options classes, the entries of their "Attributes".
    """
    schema = RunConfig.model_json_schema(mode="validation")
    definitions: dict[str, Any] = schema["$defs"]
    classes = {options.__name__: options for options in _classes(RunConfig)}
    for name, definition in list(definitions.items()):
        options = classes.get(name)
        if options is None:
            continue
        _describe(definition, options)
        if issubclass(options, TextOrFields | InstructionConfig):  # may be a text alone
            short = {"type": ["string", "null"] if options is InstructionConfig else "string"}
            description = definition.pop("description", "")
            definitions[name] = {"description": description, "anyOf": [short, definition]}
    for union in _unions(schema):
        # An OpenAPI keyword; `kind` is required here, although the class has a default for it.
        del union["discriminator"]
        union["oneOf"] = [{"allOf": [kind], "required": ["kind"]} for kind in union["oneOf"]]
    sections = schema["properties"]
    # An environment may be given as a kind or as an object path alone.
    text = {"type": "string"}
    sections["environment"] = _with_packages(sections["environment"], environments.GROUP, text)
    sections["llm"]["anyOf"].append({"type": "string"})
    sections["strategy"] = _with_packages(sections["strategy"], methods.GROUP)
    return {"$schema": DIALECT, **schema, "title": "cotune run file"}


def _with_packages(section: Mapping[str, Any], group: str, *others: Any) -> dict[str, Any]:
    """Return a section's schema that also takes the kinds that installed packages add.

    Args:
        group: their entry points.
        others: schemas of further shorthands.
    """
    kept = {key: value for key, value in section.items() if key in ("default", "description")}
    full = {key: value for key, value in section.items() if key not in kept}
    if added := sorted(registered(group)):
        kind = {"properties": {"kind": {"enum": added}}, "required": ["kind"]}
        others = (*others, {"type": "object", **kind})
    return {**kept, "anyOf": [*others, full]} if others else dict(section)


def _describe(definition: dict[str, Any], found: type) -> None:
    """Copy a docstring's first paragraph to its class's schema, and its entries to the fields."""
    text = inspect.cleandoc(found.__doc__ or "")
    head = " ".join(text.partition("\n\n")[0].split())
    if head:
        definition["description"] = head
    for base in found.__mro__:  # options may only have other defaults than their base's
        for name, entry in attribute_docs(inspect.cleandoc(base.__doc__ or "")).items():
            if name in definition.get("properties", {}):
                definition["properties"][name].setdefault("description", entry)


def attribute_docs(docstring: str) -> dict[str, str]:
    """Return the entries of a docstring's "Attributes:" by name; `a, b: …` describes both."""
    _, found, section = docstring.partition("\nAttributes:\n")
    docs: dict[str, str] = {}
    names: tuple[str, ...] = ()
    for line in section.splitlines() if found else ():
        if not line.strip():
            break  # end of the section
        entry = _ENTRY.match(line.strip()) if re.match(r" {4}\S", line) else None
        if entry:
            names = tuple(entry["names"].split(", "))
            docs |= dict.fromkeys(names, line.strip()[entry.end() :])
        else:
            docs |= {name: f"{docs[name]} {line.strip()}" for name in names}
    return docs


def _unions(part: Any) -> Iterator[dict[str, Any]]:
    """Return every subschema that is discriminated by `kind`."""
    if isinstance(part, dict):
        if "discriminator" in part:
            yield part
        for inner in list(part.values()):
            yield from _unions(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _unions(inner)


def _classes(model: type) -> Iterator[type]:
    """Return a model and all models and options classes nested in it."""
    yield model
    for annotation in get_type_hints(model).values():
        yield from _inside(annotation)


def _inside(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and (
        is_dataclass(annotation) or issubclass(annotation, BaseModel)
    ):
        yield from _classes(annotation)
    for part in get_args(annotation):
        yield from _inside(part)
