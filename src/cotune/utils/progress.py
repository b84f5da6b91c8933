"""Progress within a step: slow code reports it, and the command that shows it listens."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

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


# ---- as a command shows it: a status line on a terminal, elsewhere a line per stage or every half minute

_NAMES = {
    "train": "rollouts",
    "try": "rollouts",
    "update": "update, micro-batches",
    "verify": "verification, rollouts",
    "evolve": "evolution, rollouts",
    "llm": "evolution, proposals",
    "evaluate": "evaluation, rollouts",
}
_BETWEEN_LINES = 30.0  # seconds


@contextmanager
def step_progress(console: "Console") -> Generator[None]:
    """Show what is reported while the block runs."""
    if console.quiet:
        yield
    elif console.is_terminal:
        with (
            console.status("") as status,
            listening(write_under_step(lambda _, text: status.update(text))),
        ):
            yield
    else:
        write = write_at_intervals(lambda line: console.out(line, highlight=False))
        with listening(write_under_step(write)):
            yield


def write_under_step(show: Callable[[str, str], None]) -> Listener:
    """Return a listener that writes out each report under the step that it belongs to.

    Args:
        show: receives the name of the stage or count that began, and how far it is.
    """
    step = stage = count = ""

    def listen(counted: str, done: int, total: int) -> None:
        nonlocal step, stage, count
        if counted == "step":
            step = f"step {done + 1}/{total}: " if done < total else ""
            stage = ""  # what the step before counted is over
        elif counted == "tokens":
            if stage:
                show(step + stage, f"{step}{stage} {count}; token {done} of at most {total}")
        else:
            stage = _NAMES.get(counted, counted)
            count = f"{done}/{total}" if total else "…"
            show(step + stage, f"{step}{stage} {count}")

    return listen


def write_at_intervals(
    write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[str, str], None]:
    """Return what writes a line when a stage or the first step begins, else every half minute."""
    begun = set[str]()
    last = clock()

    def show(stage: str, text: str) -> None:
        nonlocal last
        counts_in_step = stage.startswith("step ") and not text.endswith("…")
        if (stage in begun or counts_in_step) and clock() - last < _BETWEEN_LINES:
            return
        begun.add(stage)
        last = clock()
        write(f"  {text}")

    return show
