"""Progress within a step: slow code reports it, and the command that shows it listens."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

Listener = Callable[[str, int, int], None]
"""Receives what is counted ("step", "train", "tokens", …), how much is done, and of how much.

In a stage such as "loading the policy" nothing is counted: it is 0 of 0.
"""

_listeners: list[Listener] = []


def report(counted: str, done: int, total: int) -> None:
    """Report progress to this process's listeners; cheap if there are none."""
    for listener in _listeners:
        listener(counted, done, total)


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
