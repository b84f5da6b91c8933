"""A checkpoint is a pair: veRL's folder of a step and cotune's state in it, which is written last.

So a pair is whole when the state can be read, and a kill at any moment leaves the pair before it
untouched. veRL deletes none; older ones go once a newer pair is whole.
"""

import json
import shutil
from pathlib import Path

from cotune.protocols import State
from cotune.run.json_files import write_json_atomic

_STATE = "cotune-state.json"


def step_folder(folder: Path, step: int) -> Path:
    """Return where veRL keeps the checkpoint of a step."""
    return folder / f"global_step_{step}"


def save_state(checkpoint: Path, state: State) -> None:
    write_json_atomic(checkpoint / _STATE, state)


def load_state(checkpoint: Path) -> State | None:
    """The state of a checkpoint; None where there is none that can be read."""
    try:
        value = json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest whole pair, or None."""
    for _step, path in sorted(_numbered(folder), reverse=True):
        if load_state(path):
            return path
    return None


def keep_newest(folder: Path, count: int) -> None:
    """Deletes all but the newest `count` whole pairs, and what was torn before the newest."""
    whole = sorted((step for step, path in _numbered(folder) if load_state(path)), reverse=True)
    kept = set(whole[:count])
    for step, path in _numbered(folder):
        if step not in kept and whole and step <= whole[0]:
            shutil.rmtree(path, ignore_errors=True)


def drop_later(folder: Path, step: int) -> None:
    """Delete checkpoints of steps after the one that is resumed from."""
    for number, path in _numbered(folder):
        if number > step:
            shutil.rmtree(path, ignore_errors=True)


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    named = [
        (path.name.removeprefix("global_step_"), path) for path in folder.glob("global_step_*")
    ]
    return [(int(step), path) for step, path in named if step.isdigit()]
