"""The lab imports only cotune's public names and a few documented modules."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import cotune

LAB = Path(__file__).parents[1]
MODULES: dict[str, str] = {}
"""Modules of cotune that the lab may import besides `cotune` itself, with the reason."""


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of what a file imports from cotune."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


@pytest.mark.parametrize("path", sorted(LAB.rglob("*.py")), ids=str)
def test_only_public_names_are_imported(path: Path) -> None:
    for module, name in imports(path):
        if module == "cotune":
            assert name in cotune.__all__ or not name, f"{path}: {name}"
        elif module.startswith("cotune."):
            assert module in MODULES, f"{path}: {module}"
