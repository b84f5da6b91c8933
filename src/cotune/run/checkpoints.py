"""Checkpoints of every engine: a trainer's folder of a step, with cotune's state, and last a manifest of all files.

A checkpoint is complete if it has its manifest, so a kill at any moment leaves the previous one. The manifest has
the size of every file, so that a missing or cut-off file is noticed on a resume.
"""

import json
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cotune.errors import ConfigError
from cotune.protocols import State
from cotune.run.json_files import write_json_atomic

MANIFEST = "cotune-manifest.json"
STATE = "cotune-state.json"
_NAME = re.compile(r"(?:checkpoint-|global_step_)(\d+)")  # TRL's and veRL's


def save_state(checkpoint: Path, state: State) -> None:
    """Add cotune's state and the manifest to a folder in which the trainer has written its files."""
    write_json_atomic(checkpoint / STATE, state)
    write_manifest(checkpoint)


def load_state(checkpoint: Path) -> State:
    """Return cotune's state of a complete checkpoint."""
    return json.loads((checkpoint / STATE).read_bytes())


def numbered_checkpoints(folder: Path) -> list[Path]:
    """Return all folders of checkpoints, newest first, complete or not."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted((p for p in paths if _NAME.fullmatch(p.name)), key=step_of, reverse=True)


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the folders of the complete checkpoints, newest first."""
    return [path for path in numbered_checkpoints(folder) if (path / MANIFEST).exists()]


def step_of(checkpoint: Path) -> int:
    """Return the step in a checkpoint's name."""
    return int(checkpoint.name.replace("_", "-").rpartition("-")[2])


def trained_steps(folder: Path) -> int | None:
    """Return the steps that the newest undamaged checkpoint contains; None if there is no complete one."""
    newest = newest_undamaged(complete_checkpoints(folder)).path
    return None if newest is None else int(load_state(newest)["batches"])


def write_manifest(folder: Path) -> None:
    """Write the manifest of a folder whose files are all written."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / MANIFEST)
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    write_json_atomic(folder / MANIFEST, {"schema_version": 2, "sizes": sizes})


def damaged_file(folder: Path) -> Path | None:
    """Return a file that is missing or has another size than the manifest says, or the manifest; None if all is well."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        sizes = {folder / name: int(size) for name, size in manifest["sizes"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return folder / MANIFEST
    for path, size in sizes.items():
        if not path.is_file() or path.stat().st_size != size:
            return path
    return None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The checkpoint to resume from; None if there is no complete one.

    Attributes:
        notices: what to tell the user, a line each.
        newer: the newer folders, which the run goes on without: they are damaged, or it was resumed before them.
    """

    path: Path | None = None
    notices: tuple[str, ...] = ()
    newer: tuple[Path, ...] = ()

    def set_aside(self) -> None:
        """Rename the newer folders, so that neither the trainer nor a later resume counts them."""
        for path in self.newer:
            aside = path.with_name(f"aside-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)


def newest_undamaged(complete: Iterable[Path]) -> Chosen:
    """Return the first undamaged one of complete checkpoints, newest first.

    Raises:
        ConfigError: every one is damaged. Starting over would remove what the run has logged.
    """
    notices: list[str] = []
    damaged: list[Path] = []
    wrong: Path | None = None
    for path in complete:
        wrong = damaged_file(path)
        if wrong is None:
            return Chosen(path, tuple(notices), tuple(damaged))
        damaged.append(path)
        notices.append(f"{path.name} is skipped: {wrong} is damaged or missing")
    if wrong is None:
        return Chosen()
    raise ConfigError(
        f"{wrong}: is damaged or missing, and no checkpoint to resume from is whole; restore the file, "
        "or start a new run in another folder"
    )
