"""This process: its rank among those of a launcher, its end by SIGTERM."""

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from threading import current_thread, main_thread


def launched_rank() -> int:
    """Return this process's rank among those that a launcher started; they need not be connected yet.

    0 if the environment does not name the rank of one of several processes, such as a RANK that was left behind.
    """
    rank = os.environ.get("RANK", "")
    size = os.environ.get("WORLD_SIZE", "")
    launched = rank.isdecimal() and size.isdecimal() and int(rank) < int(size)
    return int(rank) if launched else 0


@contextmanager
def stopped_by_sigterm() -> Generator[None]:
    """Turn SIGTERM into KeyboardInterrupt: a cluster's scheduler, `timeout` and `docker stop` send it.

    Does nothing in a thread, which cannot handle signals.
    """
    if current_thread() is not main_thread():
        yield
        return

    def stop(*_: object) -> None:
        # A second one must not interrupt the cleaning up.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
