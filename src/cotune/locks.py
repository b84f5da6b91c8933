"""Keeps a second process off a folder that one writes to."""

import contextlib
import os
import time
from collections.abc import Generator
from pathlib import Path

from cotune.contracts import ConfigError

_RUN_LOCK = "run.lock"


@contextlib.contextmanager
def run_locked(folder: Path) -> Generator[None]:
    """Holds a run folder while it is trained; of processes that train together the first does.

    Raises:
        ConfigError: another process trains it.
    """
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    busy = f"{folder} is being trained by another process; wait for it, or stop it"
    with locked(folder / _RUN_LOCK, busy):
        yield


@contextlib.contextmanager
def locked(path: Path, busy: str) -> Generator[None]:
    """Holds the lock that a file stands for, which the system drops with the process.

    Outside posix nothing is locked.

    Raises:
        ConfigError: another process holds it; `busy` is what is said.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        if os.name == "posix" and not (_lock(file.fileno()) or _lock(file.fileno(), wait=0.1)):
            raise ConfigError(busy)
        yield


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock; always, where the system cannot tell."""
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


def _lock(descriptor: int, wait: float = 0.0) -> bool:
    """Whether the lock was free; the second try is for one that `is_locked` held for a moment."""
    import fcntl

    time.sleep(wait)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
