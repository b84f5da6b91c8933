"""Stop on SIGTERM as on Ctrl-C: a cluster's scheduler, `timeout` and `docker stop` send it."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from threading import current_thread, main_thread


@contextmanager
def stopped_by_sigterm() -> Generator[None]:
    """Turn SIGTERM into KeyboardInterrupt. Does nothing in a thread, which cannot handle signals."""
    if current_thread() is not main_thread():
        yield
        return

    def stop(*_: object) -> None:
        signal.signal(
            signal.SIGTERM, signal.SIG_IGN
        )  # a second one must not interrupt the cleaning up
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
