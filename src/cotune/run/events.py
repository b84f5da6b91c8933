"""How a run is shown: the line that console, log and report have of each kind of event, notices of its metrics, and the display.

A line is a format string of the event's fields in rich markup, or a function that returns one for an event.
`docs/reference/run-folder.md` lists all kinds with their fields. A strategy of a user's own may record others.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, cast

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from cotune.types import Trajectory
from cotune.utils.progress import report
from cotune.utils.tables import duration
from cotune.utils.text import one_line

TRUNCATED_SHARE = "truncated_share"
ENVIRONMENT_ERROR_SHARE = "environment_error_share"
FAILED_SEARCH_SHARE = "failed_search_share"
FAILED_CALLS = "actions_failed/"
_BY_LIMIT = "truncated/"
_MOST = 0.1  # of a batch
# Of a tool's calls. A policy that has not learned to call a tool also makes many wrong ones.
_NEARLY_ALL = 0.9
_WARNED_AFTER = 3  # steps without any gradient
_EXAMPLES = 3  # of answers without a reward


def equal_rewards_notice(trajectories: Sequence[Trajectory]) -> str:
    """Return what the answers of a run's first batch look like if all rewards are equal; "" otherwise.

    A reward that never matches, or an answer that is not read from the text, is seen here and nowhere else.
    """
    judged = [t for t in trajectories if t.judged]
    rewards = {t.reward for t in judged}
    if len(rewards) != 1:
        return ""
    unanswered = sum(t.answer is None for t in judged)
    examples = list(dict.fromkeys(map(_answer_and_expected, judged)))[:_EXAMPLES]
    return (
        f"all {len(judged)} rollouts of the first step have the reward {rewards.pop():.3g}, {unanswered} of them "
        f"without an answer; such as {', '.join(examples)}; if any should score otherwise, check the reward functions"
    )


def _answer_and_expected(trajectory: Trajectory) -> str:
    """Return a rollout's answer, or the end of its text if it has none, beside the first expected one."""
    if trajectory.answer is None:
        return f'no answer in "…{one_line(trajectory.own_text)[-80:]}"'
    expected = [f' (expected "{one_line(a)[:80]}")' for a in trajectory.task.answers[:1]]
    return f'"{one_line(trajectory.answer)[:80]}"' + "".join(expected)


def truncation_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the share of truncated rollouts, and that of each limit that cut any off."""
    limits = Counter(filter(None, (t.truncated_by for t in trajectories)))
    count = len(trajectories)
    shares = {_BY_LIMIT + limit: limits[limit] / count for limit in sorted(limits)}
    return {TRUNCATED_SHARE: limits.total() / count, **shares}


def truncation_notice(metrics: Mapping[str, float]) -> str:
    """Return a notice if more than half of a batch was truncated, with what to change; "" otherwise."""
    by_limit = {name: value for name, value in metrics.items() if name.startswith(_BY_LIMIT)}
    if metrics.get(TRUNCATED_SHARE, 0.0) <= 0.5 or not by_limit:
        return ""
    limit = max(by_limit, key=by_limit.__getitem__).removeprefix(_BY_LIMIT)
    fix = f"raise limits.{limit}"
    if limit == "context":
        fix = "lower limits.prompt_tokens or choose a policy with a longer context"
    return f"{metrics[TRUNCATED_SHARE]:.0%} of the rollouts were truncated, most of them by {limit_name(limit)}; {fix}"


def limit_name(limit: str) -> str:
    """Return the name of a limit: its field in a run file, or the policy's context."""
    return "the policy's context" if limit == "context" else f"limits.{limit}"


def _outage_notice(metrics: Mapping[str, float]) -> str:
    """Return a notice if the environment fails in more than a tenth of a batch, or a tool nearly always."""
    if (share := metrics.get(FAILED_SEARCH_SHARE, 0.0)) > _MOST:
        return f"a search failed in {share:.0%} of the rollouts; check environment.retriever"
    if (share := metrics.get(ENVIRONMENT_ERROR_SHARE, 0.0)) > _MOST:
        return (
            f"{share:.0%} of the rollouts ended in an error of the environment or its tools; read the "
            "errors in trajectories/"
        )
    for name, share in metrics.items():
        tool = name.removeprefix(FAILED_CALLS)
        if tool != name and share > _NEARLY_ALL and metrics[f"actions/{tool}"] > _MOST:
            return f"{share:.0%} of the turns with {tool} failed; read the errors in trajectories/"
    return ""


def _is_flat(metrics: Mapping[str, float]) -> bool:
    # A teacher's loss has a gradient all the same.
    return metrics.get("zero_advantage_share") == 1 and not metrics.get("distil/share")


_FLAT_NOTICE = (
    f"the rewards of every group were equal in {_WARNED_AFTER} steps in a row: there is nothing to learn from; "
    "look at rollouts in trajectories/"
)

Fields = Mapping[str, object]


@dataclass(frozen=True)
class Kind:
    """A kind of events.

    Attributes:
        line: how an event is shown; a function returns "" for one that is not.
        level: of the log; a script's trainer shows warnings, and so does the report.
    """

    line: str | Callable[[Fields], str]
    level: int = logging.INFO


def describe_event(kind: str, fields: Fields) -> str:
    """Return an event as a line of rich markup; "" for events that are not shown.

    Model text is escaped, and stripped of control characters.
    """
    line = EVENTS[kind].line if kind in EVENTS else ""
    return _Line().vformat(line if isinstance(line, str) else line(fields), (), fields)


class _Line(Formatter):
    """Formats an event's fields without an error: a text escaped, a missing one as a dash.

    For a text, the format is the most characters of it to show.
    """

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key))

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, int | float):
            return format(value, format_spec)
        if value is None:
            return "–"
        text = one_line(str(value))
        limit = int(format_spec) if format_spec.isdigit() else len(text)
        return escape(text if len(text) <= limit else f"{text[:limit]}…")


def _born(event: Fields) -> str:
    verified = event.get("score") is not None
    verdict = ", {score:.2f} against its parent's {parent_score:.2f}" if verified else ""
    return f"[green]+ {{id}}[/] ({{origin}}{verdict}): {{text:110}}"


_EVALUATED = {
    "before": "before training, initial instruction",
    "during": "best instruction so far ({instruction_id})",
    "contender": "its rival {instruction_id}",
    "uplift": "initial instruction",
    "after": "best instruction ({instruction_id})",
    "plain": "initial instruction",
    "hinted": "best instruction and hint",
}
"""What is evaluated, by `when` of an event."""


def _describe_evaluation(event: Fields) -> str:
    subject = _EVALUATED.get(str(event.get("when")), "{instruction_id}")
    return f"[cyan]{subject}: {{measure}} {{em:.2f}}[/] on {{n}} {{split}} questions"


def _resumed(event: Fields) -> str:
    names = ", ".join(cast("Mapping[str, object]", event.get("changed") or {}))
    changed = escape(names).replace("{", "{{").replace("}", "}}")
    return "resumed after step {from_step}" + (f"; changed: {changed}" if changed else "")


_EVALUATIONS = "{evaluations:,}/{budget:,} evaluations"
_WARN = logging.WARNING
EVENTS: Mapping[str, Kind] = {
    "resumed": Kind(_resumed),
    "evaluated": Kind(_describe_evaluation),
    "instruction_born": Kind(_born),
    "instruction_pruned": Kind("[red]- {id}[/] pruned at weight {weight:.2f}"),
    "evolution": Kind(
        "evolution: {accepted} of {proposed} proposals accepted, {verified} verified; population of "
        "{population}"
    ),
    "trial": Kind("trial in the next batches: {count} candidates"),
    "proposal_failed": Kind("[yellow]{reason}[/]"),
    "phase_failed": Kind("[yellow]no proposal of this phase was useful: {reason}[/]", _WARN),
    "proposals_ended": Kind("[yellow]{reason}; training continues without new proposals[/]", _WARN),
    "best_kept": Kind("{text}"),
    "gepa_progress": Kind(
        f"GEPA: {_EVALUATIONS}, {{instructions}} instructions, best {{best_dev_score:.2f}} on dev"
    ),
    "gepa_phase_ended": Kind(
        "GEPA: {accepted} of {asked} proposals accepted; dev {initial_dev_score:.2f} -> {best_dev_score:.2f}; "
        + _EVALUATIONS
    ),
    "hard_samples": Kind(
        "{hard} hard questions, {newly_hard} newly; {graduated} graduated, {solved_by_hint} of them under hints"
    ),
    "hint_progress": Kind(
        f"hints: {_EVALUATIONS}, best {{best_mean_dev_score:.2f}}", logging.DEBUG
    ),
    "hint_accepted": Kind("[green]+ hint[/] ({mean_dev_score:.2f} on dev): {text:110}"),
    "hint_phase_ended": Kind(
        "hints: {accepted} of {asked} proposals accepted, {covering} cover; "
        f"dev solved {{solved_without:.2f}} -> {{solved_by_cover:.2f}}; {_EVALUATIONS}"
    ),
    "notice": Kind("[yellow]{text}[/]", _WARN),
}
"""The kinds of the package that have a line; the others are only recorded."""


_log = logging.getLogger("cotune")


class RunDisplay:
    """Shows events, steps and notices on a console (a quiet one shows nothing).

    A script has none: its trainer shows the steps, and the logger "cotune" gets the rest.
    """

    def __init__(self, console: Console | None = None, total_steps: int = 0) -> None:
        self._console = console
        self._total = total_steps
        self._noticed = set[str]()
        self._flat_steps = 0  # in a row, in which all rewards of each group were equal
        self._last_step: int | None = None
        self._started = time.monotonic()
        self._first: tuple[int, float] | None = None

    def event(self, kind: str, step: int, fields: Mapping[str, object]) -> None:
        if line := describe_event(kind, fields):
            self._tell(step, line, EVENTS[kind].level)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        # A step may have further optimizer steps on the same rollouts (training.mini_batches).
        if step == self._last_step:
            return
        self._last_step = step
        if self._console is not None:
            report("step", step, self._total)
            figures = [
                text.format(values[name]) for name, text in _FIGURES.items() if name in values
            ]
            figures += self._time_left(step, self._total)
            self._tell(step, f"[bold]step {step}/{self._total}[/]  {'  '.join(figures)}")
        self._flat_steps = self._flat_steps + 1 if _is_flat(values) else 0
        for problem, notice in (
            ("truncation", truncation_notice(values)),
            ("outage", _outage_notice(values)),
            ("equal rewards", _FLAT_NOTICE if self._flat_steps == _WARNED_AFTER else ""),
        ):
            if notice and problem not in self._noticed:
                self._noticed.add(problem)
                self._tell(step, f"[yellow]{escape(notice)}[/]", logging.WARNING)

    def _time_left(self, step: int, total: int) -> list[str]:
        """Estimate the time left from the steps after the first one seen, which also warms up."""
        now = time.monotonic()
        if self._first is None:
            self._first = step, now
        since, began = self._first
        if not since < step < total:
            return []
        return [f"{duration((now - began) / (step - since) * (total - step))} left"]

    def _tell(self, step: int, line: str, level: int = logging.INFO) -> None:
        """Print markup after the time, in a file as one line; or log it."""
        if self._console is None:
            _log.log(level, "step %d: %s", step, Text.from_markup(line).plain)
            return
        seconds = int(time.monotonic() - self._started)
        text = f"  [dim]{seconds // 60:02d}:{seconds % 60:02d}[/] {line}"
        self._console.print(text, highlight=False, soft_wrap=not self._console.is_terminal)


_FIGURES = {
    "reward_mean": "reward {:.2f}",
    "zero_advantage_share": "zero-advantage groups {:.0%}",
    "turns_mean": "turns {:.1f}",
    TRUNCATED_SHARE: "truncated {:.0%}",
    "inspo/population_size": "population {:.0f}",
    "inspo/best_weight": "best weight {:.2f}",
    "hinted_share": "under hints {:.0%}",
    "distil/loss": "distillation loss {:.3f}",
}
"""The metrics of a step that the console shows."""
