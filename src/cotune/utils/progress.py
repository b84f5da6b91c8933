"""Progress within a step: slow code reports it, and the command that shows it listens."""

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


# ---- as a command shows it: a status line on a terminal, elsewhere a line when a stage first begins

_NAMES = {
    "train": "rollouts",
    "try": "rollouts",
    "update": "update, micro-batches",
    "verify": "verification, rollouts",
    "evolve": "evolution, rollouts",
    "llm": "evolution, proposals",
    "evaluate": "evaluation, rollouts",
}


@contextmanager
def step_progress(console: "Console") -> Generator[None]:
    """Show what is reported while the block runs."""
    if console.quiet:
        yield
    elif console.is_terminal:
        with console.status("") as status, listening(write_under_step(status.update)):
            yield
    else:
        with listening(_write_stages(lambda line: console.out(line, highlight=False))):
            yield


def write_under_step(write: Callable[[str], None]) -> Listener:
    """Return a listener that writes out each report under the step that it belongs to."""
    step = stage = ""

    def listen(counted: str, done: int, total: int) -> None:
        nonlocal step, stage
        if counted == "step":
            step = f"step {done + 1}/{total}: " if done < total else ""
            stage = ""  # what the step before counted is over
        elif counted == "tokens":
            if stage:
                write(f"{step}{stage}; token {done} of at most {total}")
        else:
            stage = f"{_NAMES.get(counted, counted)} {f'{done}/{total}' if total else '…'}"
            write(step + stage)

    return listen


def _write_stages(write: Callable[[str], None]) -> Listener:
    """Return a listener that writes a line when a stage is first reported."""
    begun = {"step", "tokens"}

    def listen(counted: str, done: int, total: int) -> None:
        if counted not in begun:
            begun.add(counted)
            write(f"  {_NAMES.get(counted, counted)} {f'{done}/{total}' if total else '…'}")

    return listen
