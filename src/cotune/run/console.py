"""A run in words: what the console and the log say of its events and steps."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import cast

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cotune.run.outages import outage_notice
from cotune.run.scores import EXACT_MATCH, Score
from cotune.run.truncation import SHARE, truncation_notice
from cotune.utils.progress import TimeLeft, report
from cotune.utils.tables import plain_table
from cotune.utils.text import one_line

_WARNED_AFTER = 3  # steps without any gradient
_log = logging.getLogger("cotune")
_WARNINGS = ("notice", "proposal_failed", "phase_failed", "proposals_ended")
_DETAILS = ("hint_progress",)  # several per phase
NOTICES = ("notice", "phase_failed", "proposals_ended")
"""The kinds of events that a reader of the report should know."""
_SEARCH_KINDS = (
    "gepa_progress", "gepa_phase_ended", "hard_samples", "hint_progress", "hint_phase_ended"
)  # fmt: skip


class _Notices:
    """What a reader should be told about the metrics of the steps so far, each once."""

    def __init__(self) -> None:
        self._without_gradient = 0  # steps in a row
        self._truncated = self._in_outage = False

    def after(self, values: Mapping[str, float]) -> list[str]:
        """Return the notices after a step, as plain text."""
        notices: list[str] = []
        truncation, outage = truncation_notice(values), outage_notice(values)
        if truncation and not self._truncated:
            self._truncated = True
            notices.append(truncation)
        if outage and not self._in_outage:
            notices.append(outage)
        self._in_outage = bool(outage)
        # A teacher's loss has a gradient all the same.
        flat = values.get("zero_advantage_share", 0) == 1 and not values.get("distil/share", 0) > 0
        self._without_gradient = self._without_gradient + 1 if flat else 0
        if self._without_gradient == _WARNED_AFTER:
            notices.append(
                f"the rewards of every group were equal in {_WARNED_AFTER} steps in a row: "
                "there is nothing to learn from; look at rollouts with cotune try"
            )
        return notices


class ConsoleListener:
    """Show events and steps on a console.

    Args:
        console: a quiet one shows nothing.
        total_steps: the most steps the run can take.
    """

    def __init__(self, console: Console, total_steps: int) -> None:
        self._console, self._total = console, total_steps
        self._started = time.monotonic()
        self._time_left = TimeLeft()
        self._notices = _Notices()
        self._shown_step: int | None = None

    def event(self, kind: str, step: int, fields: Mapping[str, object]) -> None:
        if line := describe_event(kind, fields):
            self._print(line)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        if step == self._shown_step:
            return  # a further optimizer step on the same rollouts (training.mini_batches)
        self._shown_step = step
        total = int(values.get("total_steps", self._total))
        figures = _step_figures(values)
        if left := self._time_left.after(step, total):
            figures.append(left)
        report("step", step, total)
        self._print(f"[bold]step {step}/{total}[/]  " + "  ".join(figures))
        for notice in self._notices.after(values):
            self._print(f"[yellow]{escape(notice)}[/]")

    def _print(self, line: str) -> None:
        """Print markup after the time: with a hanging indent on a terminal, as one line in a file."""
        seconds = int(time.monotonic() - self._started)
        clock = f"  [dim]{seconds // 60:02d}:{seconds % 60:02d}[/]"
        if not self._console.is_terminal:
            self._console.print(f"{clock} {line}", highlight=False, soft_wrap=True)
            return
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_column(no_wrap=True)
        row.add_column()
        row.add_row(clock, line)
        self._console.print(row, highlight=False)


class LogListener:
    """Log events and notices to the logger "cotune", for a script, whose trainer shows the steps itself."""

    def __init__(self) -> None:
        self._notices = _Notices()
        self._noticed_step: int | None = None

    def event(self, kind: str, step: int, fields: Mapping[str, object]) -> None:
        line = describe_event(kind, fields)
        if kind == "evolution":
            line = (
                f"evolution: {fields['accepted']} of {fields['proposed']} proposals accepted, "
                f"{fields['verified']} verified; population of {fields['population']}"
            )
        if line:
            level = logging.DEBUG if kind in _DETAILS else logging.INFO
            level = logging.WARNING if kind in _WARNINGS else level
            _log.log(level, "step %d: %s", step, Text.from_markup(line).plain)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        if step == self._noticed_step:
            return
        self._noticed_step = step
        for notice in self._notices.after(values):
            _log.warning("step %d: %s", step, notice)


def _step_figures(values: Mapping[str, float]) -> list[str]:
    """Return the numbers of a step that the console shows."""
    figures = [
        f"reward {values.get('reward_mean', 0):.2f}",
        f"zero-advantage groups {values.get('zero_advantage_share', 0):.0%}",
        f"turns {values.get('turns_mean', 0):.1f}",
    ]
    if values.get(SHARE):
        figures.append(f"truncated {values[SHARE]:.0%}")
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


_EVALUATED = {
    "before": "before training",
    "during": "best instruction so far ({id})",
    "contender": "its rival {id}",
    "uplift": "initial instruction",
    "after": "best instruction ({id})",
    "plain": "initial instruction",
    "hinted": "best instruction and hint",
    "last": "last policy, best instruction ({id})",
}
"""What is evaluated, by `when` of an event."""


def describe_event(kind: str, fields: Mapping[str, object]) -> str:
    """Return an event as a line of rich markup; "" for events that are not shown.

    Model text is escaped, and stripped of control characters.
    """

    def text(name: str, most: int | None = None) -> str:
        line = one_line(str(fields.get(name, "")))
        return escape(line if most is None or len(line) <= most else f"{line[:most]}…")

    def number(name: str) -> str:
        value = fields.get(name)
        return f"{value:.2f}" if isinstance(value, int | float) else "unverified"

    if kind == "instruction_born":
        score = f", {number('score')} against its parent's {number('parent_score')}"
        verdict = score if fields.get("score") is not None else ""
        return f"[green]+ {text('id')}[/] ({text('origin')}{verdict}): {text('text', 110)}"
    if kind == "instruction_pruned":
        drawn = fields.get("observed_rollouts") != 0
        why = f"at weight {number('weight')}" if drawn else "(never drawn)"
        return f"[red]- {text('id')}[/] pruned {why}"
    if kind == "evaluated":
        what = f"{text('measure') or EXACT_MATCH} {number('em')}"
        under = _EVALUATED.get(str(fields.get("when")), "{id}").format(id=text("instruction_id"))
        return f"[cyan]{under}: {what}[/] on {text('n')} {text('split')} questions"
    if kind == "sampled":
        return f"sampled {text('rollouts')} of {text('of')} rollouts: mean reward {number('reward_mean')}"
    if kind == "training_rows":
        return (
            f"{text('rows')} {text('data')} to fine-tune on, of {text('questions')} questions: "
            f"{text('tokens')} own tokens, {text('steps')} steps"
        )
    if kind == "hint_accepted":
        return f"[green]+ hint[/] ({number('mean_dev_score')} on dev): {text('text', 110)}"
    if kind in _SEARCH_KINDS:
        return _describe_search(kind, fields)
    if kind == "phase_failed":
        return f"[yellow]no proposal of this phase was useful: {text('reason')}[/]"
    if kind == "proposals_ended":
        return f"[yellow]{text('reason')}; training continues without new proposals[/]"
    if kind in ("proposal_failed", "notice"):
        return f"[yellow]{text('reason') or text('text')}[/]"
    if kind == "best_kept":
        return text("text")
    if kind == "best_instruction":
        if fields.get("observed_steps"):
            return ""  # a population's, which "best_kept" compares with what is kept
        close = "; too close to call" if fields.get("too_close_to_call") else ""
        return (
            f"best instruction {text('id')}: weight {number('weight')} over "
            f"{text('observed_rollouts')} rollouts{close}"
        )
    if kind == "resumed":
        changed = escape(", ".join(cast("Mapping[str, object]", fields.get("changed") or {})))
        return f"resumed after step {text('from_step')}" + (changed and f"; changed: {changed}")
    return ""


def _describe_search(kind: str, fields: Mapping[str, object]) -> str:
    """Return the progress of the search for hints, or of GEPA's for an instruction, in numbers.

    Epochs count from 1; the empty hint is not counted.
    """

    def count(name: str) -> int:
        value = fields.get(name)
        return int(value) if isinstance(value, int | float) else 0

    def score(name: str) -> str:
        value = fields.get(name)
        return f"{value:.2f}" if isinstance(value, int | float) else "–"

    evaluations = f"{count('evaluations'):,}/{count('budget'):,} evaluations"
    if kind == "hard_samples":
        return (
            f"epoch {count('epoch') + 1}: {count('hard')} hard, {count('newly_hard')} newly; "
            f"{count('graduated')} graduated, {count('solved_by_hint')} of them under hints"
        )
    if kind == "hint_progress":
        best = score("best_mean_dev_score")
        return f"hints: {evaluations}, {count('hints') - 1} hints, best {best}"
    if kind == "gepa_progress":
        found = count("instructions")
        return f"GEPA: {evaluations}, {found} instructions, best {score('best_dev_score')} on dev"
    rejected, failed = count("proposed") - count("valid"), count("asked") - count("proposed")
    accepted = (
        f"{count('accepted')} of {count('asked')} proposals accepted ({rejected} rejected, "
        f"{failed} failed)"
    )
    if kind == "gepa_phase_ended":
        dev = f"dev {score('initial_dev_score')} -> {score('best_dev_score')}"
        return f"GEPA: {accepted}; {dev}; {evaluations}"
    return (
        f"hints: {accepted}, {count('covering')} cover; dev solved {score('solved_without')} -> "
        f"{score('solved_by_cover')}; {evaluations}"
    )


def score_table(title: str, rows: Sequence[tuple[str, Score | None]]) -> Table:
    """Return a table of mean rewards, overall and by stratum, one row per score."""
    strata = sorted({name for _, score in rows if score for name in score.by_stratum})
    table = plain_table(title, [""], ["all", *(escape(one_line(name)) for name in strata)])
    for label, score in rows:
        if score is None:
            continue
        cells = [f"{score.by_stratum[s][0]:.2f}" if s in score.by_stratum else "" for s in strata]
        table.add_row(label, f"{score.em:.2f}", *cells)
    return table
