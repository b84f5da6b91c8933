"""A checkpoint is a pair: the trainer's folder and cotune's state of the same step.

cotune's half is written first, atomically; the trainer writes `trainer_state.json` last. So a pair
is whole when that file can be read and the state beside it can, too, and a kill at any moment
leaves the pair before it untouched.
"""

import json
from pathlib import Path
from typing import Any

from cotune.contracts import State
from cotune.json_files import write_json_atomic


def state_path(folder: Path, step: int) -> Path:
    """Where cotune's half of the checkpoint of an optimizer step lies."""
    return folder / f"cotune-state-{step}.json"


def save_state(folder: Path, step: int, state: State) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json_atomic(state_path(folder, step), state)


def load_state(folder: Path, step: int) -> State | None:
    """The state of a step, or None if there is none that can be read."""
    return _read_json(state_path(folder, step))


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest whole pair's trainer folder, or None."""
    found = [
        (int(path.name.removeprefix("checkpoint-")), path)
        for path in folder.glob("checkpoint-*")
        if path.name.removeprefix("checkpoint-").isdigit()
    ]
    for step, path in sorted(found, reverse=True):
        if _read_json(path / "trainer_state.json") and load_state(folder, step):
            return path
    return None


def drop_orphans(folder: Path, keep_from: int) -> None:
    """Deletes states older than `keep_from` whose trainer folder was rotated away."""
    for path in folder.glob("cotune-state-*.json"):
        step = path.stem.removeprefix("cotune-state-")
        if (
            step.isdigit()
            and int(step) < keep_from
            and not (folder / f"checkpoint-{step}").exists()
        ):
            path.unlink(missing_ok=True)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
