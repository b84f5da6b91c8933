"""Choose the checkpoint of a resume, for every engine: the newest whose files match its manifest."""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cotune.errors import ConfigError
from cotune.run.journal import Journal
from cotune.run.manifest import Manifest, damaged_by_manifest, hashes, read_manifest


@dataclass(frozen=True, slots=True)
class Chosen:
    """The checkpoint to resume from.

    Attributes:
        path: the trainer's folder; None if there is no complete checkpoint.
        logs: what its manifest says of the run's logs.
        notices: what to tell the user, a line each.
        damaged: newer folders that were skipped.
    """

    path: Path | None = None
    logs: Mapping[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    notices: tuple[str, ...] = ()
    damaged: tuple[Path, ...] = ()

    def set_aside(self) -> None:
        """Rename the damaged folders, so that the trainer does not count them among its own."""
        for path in self.damaged:
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)


def write_manifest(checkpoint: Path, journal: Journal, extra: Iterable[Path] = ()) -> None:
    """Complete a checkpoint: write the hashes of its files and of the run's logs so far.

    Args:
        checkpoint: the trainer's folder, with all of its files.
        journal: where the run is recorded.
        extra: files of the checkpoint that are not in its folder.
    """
    Manifest(files=hashes(checkpoint, extra), logs=journal.committed()).write(checkpoint)


def newest_undamaged(complete: Iterable[Path]) -> Chosen:
    """Return the first checkpoint whose files are what was written.

    Args:
        complete: folders of checkpoints whose writing had ended, newest first.

    Raises:
        ConfigError: every one is damaged. Starting over would remove what the run has logged.
    """
    notices: list[str] = []
    damaged: list[Path] = []
    wrong: Path | None = None
    for path in complete:
        if (wrong := damaged_by_manifest(path)) is None:
            manifest = read_manifest(path)
            if manifest is None:
                notices.append(
                    f"{path.name} has no manifest (an earlier version, or a kill), so its files are not "
                    "checked"
                )
            logs = {} if manifest is None else manifest.logs
            return Chosen(path, logs, tuple(notices), tuple(damaged))
        damaged.append(path)
        notices.append(f"{path.name} is skipped: {wrong} is damaged or missing")
    if wrong is not None:
        raise ConfigError(
            f"{wrong}: is damaged or missing, and no older checkpoint is whole; restore the file, or "
            "start a new run in another folder"
        )
    return Chosen()


def chosen_by_trainer(checkpoint: Path) -> Chosen:
    """Return a checkpoint that a trainer chose itself; ConfigError if it is damaged."""
    if (wrong := damaged_by_manifest(checkpoint)) is not None:
        raise ConfigError(f"{wrong}: is damaged or missing; resume from an older checkpoint")
    manifest = read_manifest(checkpoint)
    return Chosen(checkpoint, {} if manifest is None else manifest.logs)
