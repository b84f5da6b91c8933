"""Run folders whose best policy is a bundled one, and quadrants of four questions."""

import shutil
from pathlib import Path
from typing import Any

from cotune.config.run_file import RunConfig, dump_config, parse_config
from cotune.experiments.evaluate.quadrants import Quadrants
from cotune.policy.policy_files import policy_path
from cotune.run.best import BestRecord
from cotune.run.record import Record
from cotune_lab.worlds.geo import INITIAL_INSTRUCTION as SEARCH
from tests.policy.tiny import small_policy
from tests.run_files import tiny

BETTER = f"{SEARCH} Search for one entity at a time."
GEO: dict[str, Any] = {
    "environment": {"test": 6, "train": 8, "validation": 3},
    "limits": {"turns": 6, "turn_tokens": 80, "observation_tokens": 200, "trajectory_tokens": 640},
    "strategy": {"kind": "static"},
}
LADDER: dict[str, Any] = {
    "policy": {"path": "bundled:ladder"},
    "environment": {"kind": "ladder", "train": 8, "validation": 4, "test": 8},
    "limits": {"turns": 1, "turn_tokens": 96, "prompt_tokens": 256},
    "strategy": {"kind": "static"},
}


def short(**changes: Any) -> dict[str, Any]:
    """Short rollouts of a small policy, where no reward is looked for."""
    small = {"policy": {"path": small_policy()}, "limits": {"turns": 2, "turn_tokens": 8}}
    return {**GEO, **small, **changes}


def write_run(folder: Path, changes: dict[str, Any], instruction: str, hint: str = "") -> RunConfig:
    """A run folder whose best policy is the bundled one."""
    config = parse_config(tiny(folder, changes), "the test")
    run = Record.create(folder, dump_config(config))
    shutil.copytree(policy_path(config.policy.path), run.best_path)
    BestRecord(em=0.5, step=1, instruction_id="i1", instruction=instruction, hint=hint).write(
        run.best_path
    )
    run.write_summary({})
    return config


def quadrants(**changes: Any) -> Quadrants:
    """Four questions; sampled rewards are half of the greedy ones."""
    greedy = {
        "initial_plain": (0.0, 0.0, 0.0, 1.0),
        "initial_prompted": (0.0, 1.0, 0.0, 1.0),
        "trained_plain": (0.0, 0.0, 1.0, 1.0),
        "trained_prompted": (1.0, 1.0, 1.0, 1.0),
    }
    fields: dict[str, Any] = {
        "split": "test", "measure": "exact match", "samples": 2, "temperature": 1.0,
        "initial": "Do.", "best": "Do it.", "trained": True,
        "questions": ("a", "b", "c", "d"), "strata": ("", "", "", ""),
        "rewards": {
            name: {"greedy": values, "sampled": tuple(value / 2 for value in values)}
            for name, values in greedy.items()
        },
        "divergences": {
            "plain": ((0.5, 1), (1.5, 1), (0.0, 1), (0.0, 1)),
            "prompted": ((1.0, 2), (2.0, 4), (0.5, 1), (0.5, 1)),
        },
    }  # fmt: skip
    return Quadrants(**fields | changes)
