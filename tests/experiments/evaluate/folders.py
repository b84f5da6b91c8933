"""Run folders whose best policy is a bundled one."""

import json
import shutil
from pathlib import Path
from typing import Any

from cotune.config.run_file import RunConfig, dump_config, parse_config
from cotune.policy.policy_files import policy_path
from cotune.run.record import Record
from cotune_lab.worlds.geo import INITIAL_INSTRUCTION as SEARCH
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
    "limits": {"turns": 1, "turn_tokens": 96},
    "strategy": {"kind": "static"},
}


def finished(folder: Path, changes: dict[str, Any], instruction: str, hint: str = "") -> RunConfig:
    """A run folder whose best policy is the bundled one."""
    config = parse_config(tiny(folder, changes), "the test")
    run = Record.create(folder, dump_config(config))
    shutil.copytree(policy_path(config.policy.path), run.best_path)
    chosen = {
        "em": 0.5,
        "step": 1,
        "instruction_id": "i1",
        "instruction": instruction,
        "hint": hint,
    }
    (run.best_path / "best.json").write_text(json.dumps({"schema_version": 1, **chosen}))
    run.write_summary({})
    return config
