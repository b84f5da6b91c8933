"""Show the progress of a command: a bar on a terminal, elsewhere a line per stage or every half minute."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cotune.utils.progress import TimeLeft, listening

_WHAT = {
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
        with bar, listening(_Bar(bar)):
            yield
    else:

        def write(line: str) -> None:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

        with listening(Lines(write)):
            yield


class _Steps:
    """The run's position, for both displays."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._time_left = TimeLeft(clock)
        self._next, self._left, self._token = "", "", ""
        self._current = ("", 0, 0)

    def take(self, what: str, done: int, total: int) -> bool:
        """Note a report; return whether the display changes."""
        if what == "step":
            self._left, self._token = self._time_left.after(done, total), ""
            self._next = f"step {done + 1}/{total}: " if done < total else ""
            return False
        if what == "tokens":
            self._token = f"token {done} of at most {total}"
            return bool(self._current[0])
        if what != self._current[0]:
            self._token = ""
        self._current = (what, done, total)
        return True

    @property
    def description(self) -> str:
        return self._next + _WHAT.get(self._current[0], self._current[0])

    @property
    def done(self) -> int:
        return self._current[1]

    @property
    def total(self) -> int:
        """Return the size of the current work; 0 for a stage, in which nothing is counted."""
        return self._current[2]

    @property
    def count(self) -> str:
        return f"{self.done}/{self.total}" if self.total else ""

    @property
    def more(self) -> str:
        return ", ".join(part for part in (self._token, self._left) if part)


class _Bar(_Steps):
    """A bar of what the current step does."""

    def __init__(self, bar: Progress) -> None:
        super().__init__()
        self._bar = bar
        self._task = bar.add_task("", visible=False, count="", more="")
        self._shown = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if what == "step":
            self._bar.update(self._task, visible=False)
        if not self.take(what, done, total):
            return
        if changed := self.description != self._shown:
            self._bar.reset(self._task)
            self._shown = self.description
        # `update` keeps the old total if the new one is None.
        self._bar.tasks[0].total = self.total or None
        self._bar.update(
            self._task, description=self._shown, completed=self.done, count=self.count,
            more=self.more, visible=True,
        )  # fmt: skip
        if changed:  # an import may keep the thread that refreshes from running
            self._bar.refresh()


class Lines(_Steps):
    """Print a line when a stage or a kind of work begins.

    Until the first step has ended, a stage or work that was printed before is repeated at most every half
    minute. After that, every stage is printed, and the work of a step at most every half minute.

    Args:
        write: prints a line.
        clock: returns seconds.
    """

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(clock)
        self._write, self._clock, self._last = write, clock, clock()
        self._begun: set[str] | None = set()  # None once a step has ended

    def __call__(self, what: str, done: int, total: int) -> None:
        if what == "step":
            self._last = self._clock()  # its own line has just been printed
            self._begun = None
        if not self.take(what, done, total):
            return
        begins = self._begun is not None and self.description not in self._begun
        if self._begun is not None:
            self._begun.add(self.description)
        again = self.total or self._begun is not None
        if again and not begins and self._clock() - self._last < _BETWEEN_LINES:
            return
        self._last = self._clock()
        more = f"; {self.more}" if self.more else ""
        self._write(f"  {self.description} {self.count or '…'}{more}")
