"""Show the progress of a command: a bar on a terminal, elsewhere a line per stage or every half minute."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cotune.utils.progress import Listener, TimeLeft, listening

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

Show = Callable[[str, int, int, str], None]
"""Shows what is done, how much of it and of how much (0 of 0 in a stage), and more, such as the time left."""


@contextmanager
def step_progress(console: Console) -> Generator[None]:
    """Show what is reported by `cotune.utils.progress` while the block runs."""
    if console.quiet:
        yield
    elif console.is_terminal:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(30),  # pulses in a stage
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[more]}"),
        )
        bar = Progress(*columns, console=console, transient=True, refresh_per_second=4)
        with bar, listening(described(_bar(bar))):
            yield
    else:
        with listening(described(lines(lambda line: console.out(line, highlight=False)))):
            yield


def described(show: Show, clock: Callable[[], float] = time.monotonic) -> Listener:
    """Return a listener that shows each report under the step that it belongs to."""
    time_left = TimeLeft(clock)
    step = left = token = ""
    current = ("", 0, 0)

    def listen(counted: str, done: int, total: int) -> None:
        nonlocal step, left, token, current
        if counted == "step":
            step = f"step {done + 1}/{total}: " if done < total else ""
            left = time_left.after(done, total)
            token = ""
            current = ("", 0, 0)  # what the step before counted is over
            return
        if counted == "tokens":
            if not current[0]:
                return
            token = f"token {done} of at most {total}"
        else:
            token = token if counted == current[0] else ""
            current = (counted, done, total)
        text = step + _NAMES.get(current[0], current[0])
        show(text, *current[1:], ", ".join(filter(None, (token, left))))

    return listen


def _bar(bar: Progress) -> Show:
    task = bar.add_task("", count="", more="")

    def show(text: str, done: int, total: int, more: str) -> None:
        changed = text != bar.tasks[0].description
        if changed:
            bar.reset(task)
        bar.tasks[0].total = total or None  # `update` keeps the old total if the new one is None
        count = f"{done}/{total}" if total else ""
        bar.update(task, description=text, completed=done, count=count, more=more)
        if changed:  # an import may keep the thread that refreshes from running
            bar.refresh()

    return show


def lines(write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> Show:
    """Return what writes a line when a stage or the first step begins, else every half minute."""
    begun = set[str]()
    last = clock()

    def show(text: str, done: int, total: int, more: str) -> None:
        nonlocal last
        begins = text not in begun and not (total and text.startswith("step "))
        if not begins and clock() - last < _BETWEEN_LINES:
            return
        begun.add(text)
        last = clock()
        count = f"{done}/{total}" if total else "…"
        write(f"  {text} {count}{f'; {more}' if more else ''}")

    return show
