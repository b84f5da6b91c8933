"""Turn the error of a full disk into one line that says what to do once there is room."""

import errno
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from cotune.errors import ConfigError, CotuneError, Stopped
from cotune.utils.text import one_line, size

# Of Rust's std::io, Python, torch.save and SQLite.
_SAID = (
    "No space left on device", "os error 28", "unexpected pos",
    "PytorchStreamWriter failed writing", "disk is full",
)  # fmt: skip
_NEARLY_FULL = 2**20  # bytes
AGAIN = "run the command again"


@contextmanager
def full_disk_explained(folder: Path, again: Callable[[], str] = lambda: AGAIN) -> Generator[None]:
    """Turn an error that comes from a full disk into one line.

    Args:
        folder: the folder that is written, which need not exist.
        again: returns what to do once there is room.

    Raises:
        ConfigError: the disk is full; in place of the error.
    """
    try:
        yield
    except Exception as error:
        if (told := _told(folder, error)) is None:
            raise
        raise ConfigError(f"{told}; make room, then: {again()}") from error


def free_space(folder: Path) -> int:
    """Return the bytes that are free on the disk of a folder, which need not exist."""
    above = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    return shutil.disk_usage(above).free


def nearly_full(folder: Path) -> bool:
    """Return whether the disk of a folder has no room for what a run writes at a time."""
    return free_space(folder) < _NEARLY_FULL


def _told(folder: Path, error: Exception) -> str | None:
    """Return what happened if an error comes from a full disk; None for any other.

    Rust's and torch's writers raise their own exceptions, which name neither errno nor file.
    """
    text = one_line(str(error))
    says_so = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    says_so = says_so or any(said in text for said in _SAID)
    if isinstance(error, ConfigError | Stopped) or (isinstance(error, CotuneError) and not says_so):
        return None
    if not says_so and not nearly_full(folder):
        return None
    cause = f"{type(error).__name__}: {text[:300]}"
    return (
        f"{folder}: {'could not be written' if says_so else 'the command failed'}, and its disk has "
        f"only {size(free_space(folder))} free ({cause})"
    )
