"""Helpers for tests of the documentation: its pages, and the strings of the package."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOLE = "…"
"""Stands for a filled-in part of an f-string, and in the documentation for any name or number."""


def pages() -> list[Path]:
    return sorted(DOCS.rglob("*.md"))


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@cache
def templates() -> tuple[str, ...]:
    """Return every string of the package except docstrings, with `HOLE` for filled-in parts."""
    texts: list[str] = []
    for path in sorted((ROOT / "src" / "cotune").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts += map(_one_line, _strings(tree))
    return tuple(dict.fromkeys(texts))


def _strings(tree: ast.AST) -> Iterator[str]:
    documentation = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in documentation:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else HOLE for part in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _one_line(text: str) -> str:
    return " ".join(text.split())


def is_said(message: str, texts: tuple[str, ...]) -> bool:
    """Return whether one of the texts contains the fixed parts of a message, in order."""
    parts = [re.escape(part.strip()) for part in message.split(HOLE) if part.strip()]
    pattern = re.compile(".*".join(parts))
    return any(pattern.search(text) for text in texts)
