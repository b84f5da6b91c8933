"""What the demos share of the run files that ship."""

from collections.abc import Mapping
from importlib import resources
from typing import Any

from cotune.config.run_file import RunConfig, load_config
from cotune.experiments.compare.changes import merged
from cotune.run.ledger import policy_rollouts

STATIC: dict[str, Any] = {"strategy": {"kind": "static"}, "llm": None}
"""What makes GRPO with a static instruction of any run file."""


def shipped(name: str, changes: Mapping[str, Any]) -> RunConfig:
    """A run file of this package with changes."""
    with resources.as_file(resources.files("cotune.experiments.compare") / name) as file:
        return load_config(file, merged(load_config(file).model_dump(mode="json"), changes))


def paid(figures: Mapping[str, Any]) -> int:
    """Policy rollouts of a run: all but those of its evaluations."""
    return policy_rollouts(figures["policy_rollouts"])
