"""The test modules that import a package at their top, found in their sources."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOTS = {"cotune": ROOT / "src", "tests": ROOT}


def file_of(module: str) -> Path | None:
    """The file of one of our modules; None for others', and for a name within a module."""
    root = ROOTS.get(module.partition(".")[0])
    if root is None:
        return None
    base = root.joinpath(*module.split("."))
    files = (base.with_suffix(".py"), base / "__init__.py")
    return next((file for file in files if file.exists()), None)


def at_import(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that importing a module runs."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If):
            typing_only = "TYPE_CHECKING" in ast.unparse(node.test)
            yield from at_import(node.orelse if typing_only else node.body + node.orelse)
        elif isinstance(node, ast.Try | ast.With):
            yield from at_import(node.body)


@cache
def imported(file: Path) -> frozenset[str]:
    """What a file names in its imports, with the packages above."""
    names: set[str] = set()
    for node in at_import(ast.parse(file.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    parts = [name.split(".") for name in names]
    return frozenset(".".join(p[:n]) for p in parts for n in range(1, len(p) + 1))


def reached(file: Path) -> set[str]:
    """All that importing a file imports, as far as our own modules lead."""
    names: set[str] = set()
    todo = [file]
    while todo:
        new = imported(todo.pop()) - names
        names |= new
        todo += [found for name in new if (found := file_of(name)) is not None]
    return names


def modules_with(package: str) -> list[str]:
    """Return the test modules that importing needs a package for, relative to this folder."""
    tests = ROOT / "tests"
    files = tests.rglob("test_*.py")
    return [str(file.relative_to(tests)) for file in files if package in reached(file)]
