"""Checkpoints of every engine: a trainer's folder of a step, in which cotune's state is written last.

A checkpoint is complete if it has that state, so a kill at any moment leaves the previous one.
"""

import json
import re
import shutil
import zipfile
from pathlib import Path

from cotune.errors import ConfigError
from cotune.protocols import State
from cotune.run.json_files import write_json_atomic

STATE = "cotune-state.json"
GO_ON = "restore the file, or remove the checkpoint's folder to go on from the one before it, or else from the start"
# TRL's files, and the last one veRL's.
_TORCH_FILES = ("optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state*.pth", "data.pt")
_NAME = re.compile(r"(?:checkpoint-|global_step_)(\d+)")  # TRL's and veRL's


def save_state(checkpoint: Path, state: State) -> None:
    """Write cotune's state into a folder that the trainer has finished; this completes the checkpoint."""
    write_json_atomic(checkpoint / STATE, state)


def load_state(checkpoint: Path) -> State:
    """Return cotune's state of a complete checkpoint; ConfigError if it is damaged."""
    try:
        return json.loads((checkpoint / STATE).read_bytes())
    except ValueError as error:
        raise ConfigError(f"{checkpoint}: {STATE} is damaged ({error}); {GO_ON}") from error


def damaged_file(checkpoint: Path) -> str:
    """Say which of the trainer's files beside the weights is cut off; "" if none is."""
    files = (file for pattern in _TORCH_FILES for file in checkpoint.glob(pattern))
    cut_off = (file for file in files if not zipfile.is_zipfile(file))
    return next((f"{file.name} is damaged" for file in cut_off), "")


def numbered_checkpoints(folder: Path) -> list[Path]:
    """Return all folders of checkpoints, newest first, complete or not."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted((p for p in paths if _NAME.fullmatch(p.name)), key=step_of, reverse=True)


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the folders of the complete checkpoints, newest first."""
    return [path for path in numbered_checkpoints(folder) if (path / STATE).exists()]


def step_of(checkpoint: Path) -> int:
    """Return the step in a checkpoint's name."""
    return int(checkpoint.name.replace("_", "-").rpartition("-")[2])


def trained_steps(folder: Path) -> int | None:
    """Return the steps that the newest complete checkpoint contains; None if there is none."""
    complete = complete_checkpoints(folder)
    return int(load_state(complete[0])["batches"]) if complete else None


def set_aside_newer(checkpoint: Path) -> None:
    """Rename the folders of later steps, so that neither the trainer nor a later resume counts them.

    A run that goes on from an earlier checkpoint drops what was logged after it, and a kill leaves incomplete ones.
    """
    for path in numbered_checkpoints(checkpoint.parent):
        if step_of(path) > step_of(checkpoint):
            aside = path.with_name(f"aside-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
