"""Progress within a step: slow code reports it, and the command that shows it listens."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

Listener = Callable[[str, int, int], None]
"""Receives what is counted ("step", "train", "tokens", …), how much is done, and of how much.

In a stage such as "loading the policy" nothing is counted: it is 0 of 0.
"""

_listeners: list[Listener] = []


def report(what: str, done: int, total: int) -> None:
    """Report progress to this process's listeners; cheap if there are none."""
    for listener in _listeners:
        listener(what, done, total)


def begin(stage: str) -> None:
    """Report that a stage of unknown length begins, such as "loading the policy"."""
    report(stage, 0, 0)


@contextmanager
def listening(listener: Listener) -> Generator[None]:
    """Pass reports to a listener while the block runs."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class TimeLeft:
    """Estimate the time left from the steps after the first one seen, which also warms up.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[int, float] | None = None

    def after(self, step: int, total: int) -> str:
        """Return "1 h 05 min left" once a step has ended; "" while unknown, or at the end."""
        now = self._clock()
        if self._first is None:
            self._first = step, now
        since, began = self._first
        if not since < step < total:
            return ""
        left = (now - began) / (step - since) * (total - step)
        return f"{rounded(max(1.0, left))} left"


def rounded(seconds: float) -> str:
    """Write seconds as "42 s", "3 min" or "5 h 07 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
