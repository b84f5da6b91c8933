"""The parts of a model card that every bundled policy shares."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cotune.run.scores import wilson

SCHEMA_VERSION = 1


def identity(
    folder: Path, policy: str, model: Any, vocabulary: int, recipe: Any, packages: Iterable[str]
) -> dict[str, Any]:
    """Return a card's first fields: what the policy is and what made it.

    Args:
        folder: holds the weights.
        policy: its name, as in "bundled:NAME".
        model: the policy, loaded.
        vocabulary: tokens of its tokenizer.
        recipe: a dataclass that says how it was trained.
        packages: whose versions are recorded.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "policy": policy,
        "architecture": model.config.architectures[0],
        "parameters": sum(p.numel() for p in model.parameters()),
        "vocabulary": vocabulary,
        "weights_sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "recipe": asdict(recipe),
        "packages": {name: version(name) for name in packages},
    }


def sentence_counts(sentences: Mapping[Any, Sequence[Sequence[str]]]) -> dict[str, Any]:
    """Count the patterns and sentences of each kind of phrase."""
    return {
        kind.value: {"patterns": len(patterns), "sentences": sum(map(len, patterns))}
        for kind, patterns in sentences.items()
    }


def share(name: str, mean: float, n: int) -> dict[str, Any]:
    """Return a measured share under its name, with its count and 95 % interval."""
    return {name: round(mean, 4), "n": n, "interval": [round(end, 4) for end in wilson(mean, n)]}


def read_card(folder: Path) -> dict[str, Any]:
    """Read the card beside a policy's weights."""
    return json.loads((folder / "card.json").read_text(encoding="utf-8"))


def introduction(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the README that every card fills in alike."""
    return {
        "parameters": card["parameters"],
        "architecture": card["architecture"].removesuffix("ForCausalLM"),
        "vocabulary": card["vocabulary"],
        "recipe": card["recipe"],
        "data": card["data"],
        "measured": card["measurement"],
        "sentences": ", ".join(
            f"{n['sentences']} {k}" for k, n in card["data"].get("sentences", {}).items()
        ),
        "packages": ", ".join(f"{name} {number}" for name, number in card["packages"].items()),
    }


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table: two columns of text, then columns of numbers."""
    rule = ["---"] * 2 + ["---:"] * (len(head) - 2)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))
