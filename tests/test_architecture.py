"""The architecture: which package may import which, read from the sources."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "cotune"
LAYERS = (
    "errors", "types", "protocols", "utils", "run", "methods", "rollout", "llm", "rewards",
    "data", "retrieval", "environments", "policy", "worlds", "config",
    "export", "experiments", "engines", "cli", "__main__", "__init__",
)  # fmt: skip
"""The packages and root modules: each may import those before it, never those after it."""


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    paths: dict[str, Path] = {}
    for path in ROOT.rglob("*.py"):
        parts = ("cotune", *path.relative_to(ROOT).with_suffix("").parts)
        if "starters" not in parts:  # files that users get, not part of the program
            paths[".".join(parts)] = path
    return paths


def layer(module: str) -> str:
    """The package, or the root module, that a dotted name lies in."""
    return module.split(".")[1] if "." in module else "__init__"


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of what a file imports from cotune: at the top, lazily, or for types."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: a relative import"
            base = node.module or ""
            names = [f"cotune.{a.name}" for a in node.names] if base == "cotune" else [base]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "cotune":
                yield node.lineno, name


def test_packages_import_only_those_above_them() -> None:
    below = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for module, path in modules().items()
        for line, name in imports(path)
        if layer(name) != layer(module)
        if LAYERS.index(layer(name)) > LAYERS.index(layer(module))
    ]
    assert not below


def test_modules_outside_an_engine_load_without_it() -> None:
    """What stands at the top of a module runs when it is imported; TRL and veRL exclude each other."""
    tied = ("trl", "verl", "cotune.engines.trl", "cotune.engines.verl")
    violations = [
        f"{module} imports {name}"
        for module, path in modules().items()
        if not module.startswith(("cotune.engines.trl.", "cotune.engines.verl."))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (getattr(node, "module", None) or "", *(alias.name for alias in node.names))
        if name in tied or name.startswith(tuple(f"{package}." for package in tied))
    ]
    assert not violations
