"""Locks that keep a second process from writing to the same folder."""

import contextlib
import os
import time
from collections.abc import Generator
from pathlib import Path

from cotune.errors import ConfigError
from cotune.utils.processes import launched_rank

RUN_LOCK = "run.lock"
"""The file in a run folder that is locked by the process that trains it."""
_PATIENCE = 2.0
"""Seconds that a killed process may take to disappear."""


@contextlib.contextmanager
def run_locked(folder: Path) -> Generator[None]:
    """Hold the lock of a run folder during training; if processes train together, only the first holds it.

    Raises:
        ConfigError: another process trains it.
    """
    if launched_rank():
        yield
        return
    busy = f"{folder} is being trained by another process; wait for it, or stop it"
    with locked(folder / RUN_LOCK, busy, _PATIENCE):
        yield


@contextlib.contextmanager
def locked(path: Path, busy: str, patience: float = 0.1) -> Generator[None]:
    """Hold the lock of a file, which the system releases with the process.

    Nothing is locked outside POSIX and on file systems without locks.

    Args:
        path: the file, created if missing.
        busy: the error message if another process holds it.
        patience: seconds to wait for the lock.

    Raises:
        ConfigError: another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A link is not followed, and an existing file keeps its content.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    with os.fdopen(descriptor, "r+") as file:
        end = time.monotonic() + patience
        while os.name == "posix" and not _lock(file.fileno()):
            if time.monotonic() > end:
                raise ConfigError(busy)
            time.sleep(0.05)
        yield


def _lock(descriptor: int) -> bool:
    """Take the lock. Return whether it was free or locks are not supported."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
