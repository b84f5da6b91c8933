"""Keeps a second process off a folder that one writes to."""

import contextlib
import os
import time
from collections.abc import Generator
from pathlib import Path

from cotune.errors import ConfigError
from cotune.utils.processes import launched_rank

_RUN_LOCK = "run.lock"
_PATIENCE = 2.0
"""Seconds that a process which was killed may take to be gone."""


@contextlib.contextmanager
def run_locked(folder: Path) -> Generator[None]:
    """Holds a run folder while a command trains it; of processes that train together the first does.

    Raises:
        ConfigError: another process trains it.
    """
    if launched_rank():
        yield
        return
    busy = f"{folder} is being trained by another process; wait for it, or stop it"
    with locked(folder / _RUN_LOCK, busy, _PATIENCE):
        yield


@contextlib.contextmanager
def locked(path: Path, busy: str, patience: float = 0.1) -> Generator[None]:
    """Holds the lock that a file stands for, which the system drops with the process.

    Outside posix, and on file systems without locks, nothing is locked.

    Args:
        path: the file; made if need be.
        busy: what is said where another process holds it.
        patience: seconds to try for; `is_locked` holds a lock for a moment, too.

    Raises:
        ConfigError: another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        end = time.monotonic() + patience
        while os.name == "posix" and not _lock(file.fileno()):
            if time.monotonic() > end:
                raise ConfigError(busy)
            time.sleep(0.05)
        yield


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock: always outside posix, never where files have no locks."""
    if os.name != "posix":
        return True
    import fcntl

    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _lock(descriptor: int) -> bool:
    """Whether the lock was free, or there is none to be had."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
