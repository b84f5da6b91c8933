"""The JSON schema of the run file, for editors that check and complete YAML."""

from collections.abc import Iterator, Mapping
from typing import Any

from cotune.config.run_file import RunConfig
from cotune.environments import registry as environments
from cotune.environments.instruction_config import InstructionConfig
from cotune.methods import registry as methods
from cotune.utils.importing import registered
from cotune.utils.validation import TextOrFields

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def run_schema() -> dict[str, Any]:
    """Return the schema of the run file, shorthands included; descriptions are docstrings."""
    schema = RunConfig.model_json_schema(mode="validation")
    definitions: dict[str, Any] = schema["$defs"]
    # Sections that may be a text alone.
    for options in (InstructionConfig, *TextOrFields.__subclasses__()):
        section = definitions.get(options.__name__)
        if section is not None:
            short = {"type": ["string", "null"] if options is InstructionConfig else "string"}
            description = section.pop("description", "")
            definitions[options.__name__] = {"description": description, "anyOf": [short, section]}
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
