"""Checkpoints: a trainer folder paired with cotune's state of the same step.

cotune's half is written first, atomically, and the manifest of the pair last, once all processes have written.
A pair is complete if it has its manifest, so a kill at any moment leaves the previous pair.
"""

import json
import shutil
from pathlib import Path

from cotune.protocols import State
from cotune.run.json_files import write_json_atomic
from cotune.run.manifest import MANIFEST, write_manifest


def state_path(folder: Path, step: int) -> Path:
    """Return the path of cotune's half of the checkpoint of an optimizer step."""
    return folder / f"cotune-state-{step}.json"


def save_state(folder: Path, step: int, state: State) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json_atomic(state_path(folder, step), state)


def load_state(folder: Path, step: int) -> State | None:
    """Return the state of a step, or None if it cannot be read."""
    try:
        state = json.loads(state_path(folder, step).read_bytes())
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) else None


def complete_checkpoint(folder: Path, step: int) -> None:
    """Write the manifest of a pair whose files are all written."""
    state = state_path(folder, step)
    write_manifest(folder / f"checkpoint-{step}", (state,) if state.exists() else ())


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the trainer's folders of the complete pairs, newest first."""
    newest_first = sorted(_trainer_folders(folder), reverse=True)
    return [path for _, path in newest_first if (path / MANIFEST).exists()]


def drop_torn(folder: Path) -> None:
    """Delete incomplete trainer folders, which the trainer's rotation would count.

    Deletes only folders of cotune's own saves: those that have a state file beside them.
    """
    for step, path in _trainer_folders(folder):
        if state_path(folder, step).exists() and not (path / MANIFEST).exists():
            shutil.rmtree(path)


def drop_orphans(folder: Path, keep_from: int) -> None:
    """Delete states older than `keep_from` whose trainer folder was rotated away."""
    for path in folder.glob("cotune-state-*.json"):
        step = path.stem.removeprefix("cotune-state-")
        rotated_away = not (folder / f"checkpoint-{step}").exists()
        if step.isdigit() and int(step) < keep_from and rotated_away:
            path.unlink(missing_ok=True)


def _trainer_folders(folder: Path) -> list[tuple[int, Path]]:
    numbered = [
        (path.name.removeprefix("checkpoint-"), path) for path in folder.glob("checkpoint-*")
    ]
    return [(int(step), path) for step, path in numbered if step.isdigit()]
