"""Choose the checkpoint of a resume, for every engine: the newest whose files are all there."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cotune.errors import ConfigError
from cotune.run.manifest import damaged_file


@dataclass(frozen=True, slots=True)
class Chosen:
    """The checkpoint to resume from.

    Attributes:
        path: the trainer's folder; None if there is no complete checkpoint.
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
    """Return the first checkpoint whose files have the size that was written.

    Args:
        complete: folders of checkpoints whose writing had ended, newest first.

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
