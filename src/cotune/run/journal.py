"""A run's journal: a protocol, the one that writes to the run folder and shows it, a silent one."""

import time
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cotune.run.outages import outage_notice
from cotune.run.replies import Bookings, ReplyCache
from cotune.run.run_dir import RunDir
from cotune.run.scores import EXACT_MATCH, Score
from cotune.run.truncation import SHARE, truncation_notice
from cotune.types import Purpose, Trajectory
from cotune.utils.progress import TimeLeft, report
from cotune.utils.tables import plain_table
from cotune.utils.text import one_line

_WARNED_AFTER = 3  # steps without any gradient
NOTICES = ("notice", "phase_failed", "proposals_ended")
"""The kinds of events that a reader of the report should know."""
_SEARCH_KINDS = (
    "gepa_progress", "gepa_phase_ended", "hard_samples", "hint_progress", "hint_phase_ended"
)  # fmt: skip


class Journal(Protocol):
    """A place to record a run (`cotune.run.run_dir.RunDir` is one)."""

    def event(self, kind: str, step: int, /, **fields: object) -> None: ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...

    def trajectories(self, step: int, purpose: str, trajectories: Sequence[Trajectory]) -> None: ...

    def cut_back(self, step: int) -> None:
        """Drop everything after a step; a resumed run writes it again."""
        ...

    @property
    def replies(self) -> ReplyCache:
        """The LLM's replies, which a resumed run uses again."""
        ...


class SilentJournal:
    """A silent journal, for processes that serve rank 0 and for runs that keep no folder."""

    def event(self, kind: str, step: int, /, **fields: object) -> None:
        pass

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        pass

    def trajectories(self, step: int, purpose: str, trajectories: Sequence[Trajectory]) -> None:
        pass

    def cut_back(self, step: int) -> None:
        pass

    @property
    def replies(self) -> ReplyCache:
        return ReplyCache()


class Meter(Bookings, Protocol):
    """A place to count rollouts (`cotune.run.ledger.Ledger` is one)."""

    def begin_attempt(self, resumed_from: int | None, saved_in: int | None = None) -> int: ...

    def set_step(self, step: int) -> None: ...

    def add_rollouts(
        self, purpose: Purpose, rollouts: int, generated_tokens: int, seconds: float = 0.0
    ) -> None: ...


class RunJournal:
    """Write to the run folder and show progress on the console.

    Args:
        run: the folder.
        console: shows progress; a quiet one shows nothing.
        total_steps: the most steps the run can take.
        trajectories_every: steps between trajectory files of training; 0 keeps those of evaluations only.
    """

    def __init__(
        self, run: RunDir, console: Console, total_steps: int, trajectories_every: int
    ) -> None:
        self._run, self._console = run, console
        self._total, self._every = total_steps, trajectories_every
        self._started = time.monotonic()
        self._time_left = TimeLeft()
        self._without_gradient = 0  # steps in a row
        self._said_truncated = False
        self._in_outage = False
        self._shown_step: int | None = None

    def event(self, kind: str, step: int, /, **fields: object) -> None:
        self._run.event(kind, step, **fields)
        line = describe_event(kind, fields)
        if line:
            self._say(line)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._run.metrics(step, values)
        if step == self._shown_step:
            return  # a further optimizer step on the same rollouts (training.mini_batches)
        self._shown_step = step
        equal = values.get("zero_advantage_share", 0)
        shown = [
            f"reward {values.get('reward_mean', 0):.2f}",
            f"zero-advantage groups {equal:.0%}",
            f"turns {values.get('turns_mean', 0):.1f}",
        ]
        if values.get(SHARE):
            shown.append(f"truncated {values[SHARE]:.0%}")
        if "inspo/population_size" in values:
            shown.append(f"population {values['inspo/population_size']:.0f}")
            shown.append(f"best weight {values.get('inspo/best_weight', 0):.2f}")
        if "hinted_share" in values:
            shown.append(f"under hints {values['hinted_share']:.0%}")
        if values.get("distil/share", 0) > 0:
            shown.append(f"distillation loss {values.get('distil/loss', 0):.3f}")
        if (waited := values.get("llm/waited_seconds", 0)) >= 1:
            shown.append(f"waited {waited:.0f} s for the LLM")
        total = int(values.get("total_steps", self._total))
        if left := self._time_left.after(step, total):
            shown.append(left)
        report("step", step, total)
        place = f"step {step}/{total}"
        self._say(f"[bold]{place}[/]  " + "  ".join(shown))
        notice = truncation_notice(values)
        if notice and not self._said_truncated:
            self._said_truncated = True
            self._say(f"[yellow]{notice}[/]")
        outage = outage_notice(values)
        if outage and not self._in_outage:
            self._say(f"[yellow]{outage}[/]")
        self._in_outage = bool(outage)
        taught = values.get("distil/share", 0) > 0  # a teacher's loss has a gradient all the same
        self._without_gradient = self._without_gradient + 1 if equal == 1 and not taught else 0
        if self._without_gradient == _WARNED_AFTER:
            self._console.print(
                f"  [yellow]the rewards of every group were equal in {_WARNED_AFTER} steps in a row: "
                "there is nothing to learn from; look at rollouts with cotune try[/]",
                highlight=False,
            )

    def trajectories(self, step: int, purpose: str, trajectories: Sequence[Trajectory]) -> None:
        due = self._every > 0 and (step % self._every == 0 or step in (1, self._total))
        if due or purpose != "train":
            self._run.trajectories(step, purpose, trajectories)

    def cut_back(self, step: int) -> None:
        self._run.cut_back(step)

    @property
    def replies(self) -> ReplyCache:
        return self._run.replies

    def _say(self, line: str) -> None:
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


def write_score(
    journal: Journal,
    step: int,
    trajectories: Sequence[Trajectory],
    score: Score,
    split: str,
    when: str,
    trained: int,
    prompt: str = "best",
) -> None:
    """Record an evaluation and its rollouts.

    Args:
        split: the questions' split.
        when: names the evaluation: "before", "during", "after", …
        trained: steps of the policy that was scored.
        prompt: names the prompt that it was scored under: "best", "initial" or "best with hint".
    """
    journal.event(
        "evaluated",
        step,
        trained=trained,
        split=split,
        when=when,
        prompt=prompt,
        instruction_id=trajectories[0].assignment.instruction_id,
        em=score.em,
        n=score.n,
        measure=score.measure,
        by_stratum={name: list(value) for name, value in score.by_stratum.items()},
    )
    journal.trajectories(step, f"evaluate_{when}", trajectories)


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
