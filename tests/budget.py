"""The size of the repository, and the limits it keeps: `python -m tests.budget` prints the table.

A new feature pays for itself: it says what it adds in lines, and what it removes.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMITS = {
    "lines of src": 29_960,
    "lines of lab": 7_000,
    "lines of tests": 32_000,
    "words of docs": 30_000,
    "option fields": 179,
}
"""The most of each row of the table. Lower them to what a change leaves; a feature that raises one says in its commit
by how much, and what it brings for it."""


def sizes() -> dict[str, int]:
    """What the repository holds, by name: lines with docstrings and blank lines, words, counts.

    An option field is an annotated name in the body of a class of src that is called …Options or …Config and public,
    `kind` among them: what a run file, a suite or a constructor can set. A field that a class inherits
    counts once.
    """
    sources = list(_files("src", ".py"))
    classes = [
        node
        for path in sources
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    options = [
        node
        for node in classes
        if node.name.endswith(("Options", "Config")) and not node.name.startswith("_")
    ]
    return {
        "lines of src": _lines(sources),
        "lines of lab": _lines(_files("lab", ".py")),
        "lines of tests": _lines(_files("tests", ".py")),
        "words of docs": _words(_files("docs", ".md")),
        "words of README": _words([ROOT / "README.md"]),
        "files of src": len(sources),
        "classes": len(classes),
        "option classes": len(options),
        "option fields": sum(len(list(_fields(node))) for node in options),
    }


def _files(folder: str, *suffixes: str) -> Iterator[Path]:
    return (path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)


def _lines(paths: Iterator[Path] | list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def _words(paths: Iterator[Path] | list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name, annotation = statement.target.id, ast.unparse(statement.annotation)
            if not name.startswith("_") and "ClassVar" not in annotation:
                yield name


if __name__ == "__main__":
    for name, size in sizes().items():
        limit = f"of {LIMITS[name]:,}" if name in LIMITS else ""
        print(f"{name:16}{size:>8,}  {limit}".rstrip())
