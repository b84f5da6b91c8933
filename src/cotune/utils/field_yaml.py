"""Read and write YAML as run files have it: each field once, and 1e-5 a number."""

import re
from typing import Any

import yaml


class FieldLoader(yaml.SafeLoader):
    """A safe loader that rejects a field given twice; plain YAML keeps the last one.

    YAML 1.1 reads 1e-5 as text, since it has no point; here it is a number.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        fields: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in fields:
                    problem = f"{key.value} is given twice; remove one"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                fields.add((key.tag, key.value))
        return node


class FieldDumper(yaml.SafeDumper):
    """A safe dumper that quotes the texts that `FieldLoader` would read as numbers."""


for _class in (FieldLoader, FieldDumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
        list("-+0123456789"),
    )
