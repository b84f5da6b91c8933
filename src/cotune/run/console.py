"""Listeners of a record: the console of a run file, and a script's log."""

import logging
import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from cotune.run.events import EVENTS, describe_event
from cotune.run.notices import TRUNCATED_SHARE, Notices
from cotune.utils.progress import report
from cotune.utils.tables import duration

_log = logging.getLogger("cotune")


class _Listener:
    """Passes on each step once, with what is to be noticed after it."""

    def __init__(self) -> None:
        self._notices = Notices()
        self._last_step: int | None = None

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        # A step may have further optimizer steps on the same rollouts (training.mini_batches).
        if step != self._last_step:
            self._last_step = step
            self._show(step, values, self._notices.after(values))

    def _show(self, step: int, values: Mapping[str, float], notices: Sequence[str]) -> None: ...


class ConsoleListener(_Listener):
    """Show events and steps on a console.

    Args:
        console: a quiet one shows nothing.
        total_steps: the most steps the run can take.
    """

    def __init__(self, console: Console, total_steps: int) -> None:
        super().__init__()
        self._console = console
        self._total = total_steps
        self._started = time.monotonic()
        self._first: tuple[int, float] | None = None

    def event(self, kind: str, step: int, fields: Mapping[str, object]) -> None:
        if line := describe_event(kind, fields):
            self._print(line)

    def _show(self, step: int, values: Mapping[str, float], notices: Sequence[str]) -> None:
        total = int(values.get("total_steps", self._total))
        figures = _step_figures(values)
        figures += self._time_left(step, total)
        report("step", step, total)
        self._print(f"[bold]step {step}/{total}[/]  " + "  ".join(figures))
        for notice in notices:
            self._print(f"[yellow]{escape(notice)}[/]")

    def _time_left(self, step: int, total: int) -> list[str]:
        """Estimate the time left from the steps after the first one seen, which also warms up."""
        now = time.monotonic()
        if self._first is None:
            self._first = step, now
        since, began = self._first
        if not since < step < total:
            return []
        return [f"{duration((now - began) / (step - since) * (total - step))} left"]

    def _print(self, line: str) -> None:
        """Print markup after the time; in a file as one line."""
        seconds = int(time.monotonic() - self._started)
        text = f"  [dim]{seconds // 60:02d}:{seconds % 60:02d}[/] {line}"
        self._console.print(text, highlight=False, soft_wrap=not self._console.is_terminal)


class LogListener(_Listener):
    """Log events and notices to the logger "cotune", for a script, whose trainer shows the steps itself."""

    def event(self, kind: str, step: int, fields: Mapping[str, object]) -> None:
        if line := describe_event(kind, fields):
            text = Text.from_markup(line).plain
            _log.log(EVENTS[kind].level, "step %d: %s", step, text)

    def _show(self, step: int, values: Mapping[str, float], notices: Sequence[str]) -> None:
        for notice in notices:
            _log.warning("step %d: %s", step, notice)


def _step_figures(values: Mapping[str, float]) -> list[str]:
    """Return the numbers of a step that the console shows."""
    figures = [
        f"reward {values.get('reward_mean', 0):.2f}",
        f"zero-advantage groups {values.get('zero_advantage_share', 0):.0%}",
        f"turns {values.get('turns_mean', 0):.1f}",
    ]
    if values.get(TRUNCATED_SHARE):
        figures.append(f"truncated {values[TRUNCATED_SHARE]:.0%}")
    if "inspo/population_size" in values:
        figures.append(f"population {values['inspo/population_size']:.0f}")
        figures.append(f"best weight {values.get('inspo/best_weight', 0):.2f}")
    if "hinted_share" in values:
        figures.append(f"under hints {values['hinted_share']:.0%}")
    if values.get("distil/share", 0) > 0:
        figures.append(f"distillation loss {values.get('distil/loss', 0):.3f}")
    if (waited := values.get("llm/waited_seconds", 0)) >= 1:
        figures.append(f"waited {waited:.0f} s for the LLM")
    return figures
