"""The lab imports only cotune's public names and a few documented modules."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import cotune

LAB = Path(__file__).parents[1]
MODULES: dict[str, str] = {
    "cotune.worlds": "the bundled worlds and their rules, which the lab's worlds share parts with",
    "cotune.methods.inspo": "the test of a trial, replayed",
    "cotune.types": "Assignment and Turn, which episodes are made of",
    "cotune.data.splits": "ids of questions",
    "cotune.retrieval.bm25": "an index of the lab's own documents",
    "cotune.environments.registry": "registering the worlds",
    "cotune.environments.trl_factory": "keeping the process's draws while a package makes questions",
    "cotune.environments.single_turn": "answers in a box",
    "cotune.environments.search": "the search tags, and the text by which a document is found",
    "cotune.rewards": "exact match, boxed answers, the last number of a reply",
    "cotune.policy": "loading, fitting and merging a policy in a recipe",
    "cotune.rollout.coordinator": "measuring a policy that a recipe made",
    "cotune.run.scores": "intervals of those figures",
    "cotune.utils.progress": "what a slow generator is doing",
    "cotune.utils.text": "an error of a package on one line",
    "cotune.cli.app": "the command line, in tests",
}
"""Packages and modules that the lab may import besides the public names of `cotune`, with the reason."""


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of what a file imports from cotune."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


FILES = sorted(path for path in LAB.rglob("*.py") if "tests" not in path.parts[-2:])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_only_public_names_are_imported(path: Path) -> None:
    for module, name in imports(path):
        if module == "cotune":
            assert name in cotune.__all__ or not name, f"{path}: {name}"
        elif module.startswith("cotune."):
            allowed = any(f"{module}.".startswith(f"{public}.") for public in MODULES)
            assert allowed, f"{path}: {module}"
