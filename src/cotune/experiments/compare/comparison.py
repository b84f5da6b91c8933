"""Arms of one run file, trained side by side and compared: what the demos share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cotune.config.build import describe_llm
from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError, Stopped
from cotune.experiments.compare.arms import Arm, run_arms
from cotune.experiments.compare.changes import merged
from cotune.experiments.compare.shipped import shipped
from cotune.experiments.report import write_report
from cotune.run.json_files import Row
from cotune.run.run_dir import read_summary, write_summary

_PURPOSES = {"train": "train", "verify": "verify", "evolve": "evolve", "evaluate": "evaluation"}
_AT_ONCE = 2
_NOTICE_CHARS = 90


class Comparison(ABC):
    """A method against a baseline at the same number of policy rollouts, by one command.

    Attributes:
        name: of the command, `cotune NAME`, and of the summary.
        run_file: the method's, in this package.
        changes: by arm, what differs from the run file; the method is the last, with no change.
        caption: what the result is evidence of.
    """

    name: ClassVar[str]
    run_file: ClassVar[str]
    changes: ClassVar[Mapping[str, Mapping[str, Any]]]
    caption: ClassVar[str]

    @abstractmethod
    def opening(self, method: RunConfig) -> Sequence[str]:
        """What is compared, as lines of rich markup."""

    @abstractmethod
    def standing(self, arm: Arm) -> str:
        """The state of an arm's prompts while it trains."""

    @abstractmethod
    def figures(self, arm: Arm, own: Row) -> Row:
        """What an arm's entry holds besides `own`, its run's figures."""

    @abstractmethod
    def outcome(self, found: Mapping[str, Row], method: RunConfig) -> Row:
        """The summary's own fields: "strategy", "verdict" and others, from the arms' figures."""

    @abstractmethod
    def result_table(self, summary: Row) -> Table:
        """Held-out results, before and after."""

    @abstractmethod
    def prompts(self, summary: Row) -> Sequence[str]:
        """The best instruction or hints, as lines of plain text."""

    @property
    def method(self) -> str:
        """The last arm's name."""
        return list(self.changes)[-1]

    def run(self, folder: Path, seed: int, console: Console) -> Path:
        """Trains the arms, each on a core of its own, and reports; returns the report's path.

        A folder of an earlier run of this command is moved aside, never deleted.
        """
        self.set_aside(folder, console)
        arms = self.arms(folder, seed)
        for line in self.opening(arms[-1].config):
            console.print(line)
        console.print(f"[dim]{self.caption}[/]")
        try:
            self._watch(arms, console)
        except KeyboardInterrupt:
            kept = " and ".join(f"cotune resume {arm.folder}" for arm in arms)
            raise Stopped(
                f"stopped; start again with cotune {self.name}, or go on with {kept}"
            ) from None
        summary = self.summarise(folder, arms)
        report = write_report(folder)
        self._show(summary, folder, report, console)
        return report

    def arms(self, folder: Path, seed: int) -> list[Arm]:
        """One run file, several strategies."""
        return [
            Arm(
                name,
                shipped(
                    self.run_file,
                    merged({"name": name, "output": str(folder / name), "seed": seed}, change),
                ),
            )
            for name, change in self.changes.items()
        ]

    def set_aside(self, folder: Path, console: Console) -> None:
        """Renames the folder of an earlier run of this command; refuses to touch any other."""
        if not folder.exists() or not any(folder.iterdir()):
            return
        if not (folder / f"{self.method}.yaml").is_file():
            raise ConfigError(
                f"output: {folder} holds something else; choose another with --output"
            )
        number = 1
        while (aside := folder.with_name(f"{folder.name}-{number}")).exists():
            number += 1
        folder.rename(aside)
        console.print(f"the earlier demo is now in {aside}", markup=False, highlight=False)

    def _watch(self, arms: Sequence[Arm], console: Console) -> None:
        """Runs the arms: a table that is redrawn on a terminal, lines elsewhere."""
        if not console.is_terminal:
            run_arms(arms, _AT_ONCE, _Lines(self, console), every=5.0)
            return
        with Live(console=console, refresh_per_second=2) as live:
            run_arms(arms, _AT_ONCE, lambda now: live.update(self.progress_table(now)))

    def progress_table(self, arms: Sequence[Arm]) -> Table:
        """Where each arm stands."""
        table = Table(show_edge=False, pad_edge=False)
        for column in ("arm", "step", "reward", "zero-advantage groups", "prompts", "last event"):
            table.add_column(column)
        for arm in arms:
            table.add_row(*map(Text, self.progress(arm)))
        return table

    def progress(self, arm: Arm) -> tuple[str, str, str, str, str, str]:
        """Name, step, mean reward of late, zero-advantage groups, state, last event."""
        rows, steps = arm.metrics(), _most_steps(arm.config)
        told = (_short(event) for event in reversed(arm.events()))
        last = next(filter(None, told), "starting")
        if not rows:
            return arm.name, f"0/{steps}", "", "", "", last
        recent = rows[-3:]
        reward = sum(row["reward_mean"] for row in recent) / len(recent)
        return (
            arm.name,
            f"{rows[-1]['step']}/{steps}",
            f"{reward:.2f}",
            f"{rows[-1]['zero_advantage_share']:.0%}",
            self.standing(arm),
            last,
        )

    def summarise(self, folder: Path, arms: Sequence[Arm]) -> Row:
        """Writes the comparison's summary.json from the runs' own."""
        found: dict[str, Row] = {}
        for arm in arms:
            own = read_summary(arm.folder)
            if own is None:
                raise ConfigError(f"{arm.folder}: holds no summary.json; run the demo again")
            figures: Row = next(iter(own["arms"].values()))
            found[arm.name] = {**figures, "folder": arm.folder.name, **self.figures(arm, figures)}
        method = arms[-1].config
        summary = {
            "schema_version": 1,
            "name": self.name,
            "seed": method.seed,
            "caption": self.caption,
            "llm": describe_llm(method),
            "arms": found,
            **self.outcome(found, method),
        }
        write_summary(folder, summary)
        return summary

    def _show(self, summary: Row, folder: Path, report: Path, console: Console) -> None:
        """The closing tables: the result, and what it cost."""
        console.print(self.result_table(summary))
        console.print(cost_table(summary))
        console.print(f"[bold]{summary['verdict']}[/]", highlight=False)
        console.print(f"[dim]{summary['caption']}[/]")
        for line in self.prompts(summary):
            console.print(line, markup=False, highlight=False)
        console.print(f"run folder: {folder}   report: {report}", markup=False, highlight=False)


class _Lines:
    """Progress as plain lines, where there is no terminal to redraw."""

    def __init__(self, comparison: Comparison, console: Console) -> None:
        self._comparison, self._console = comparison, console
        self._shown = dict[str, str]()

    def __call__(self, arms: Sequence[Arm]) -> None:
        for arm in arms:
            name, step, reward, _, state, event = self._comparison.progress(arm)
            told = "  ".join(filter(None, (state, event)))
            line = f"{name:8} step {step:8} reward {reward:5} {told}"
            if self._shown.get(name) != line:
                self._shown[name] = line
                self._console.print(line, markup=False, highlight=False)


def _most_steps(config: RunConfig) -> int:
    """The most steps that a run can take, within its budget."""
    training = config.training
    if training.rollout_budget is None:
        return training.steps
    batch = training.questions_per_step * training.group_size
    return min(training.steps, training.rollout_budget // batch)


def _short(event: Row) -> str:
    kind = event["kind"]
    if kind == "evaluated":
        return f"held-out exact match {event['when']}: {event['em']:.2f}"
    if kind == "instruction_born" and event.get("score") is not None:
        return f"{event['id']} joined: {event['score']:.2f} against {event['parent_score']:.2f}"
    if kind == "instruction_pruned":
        return f"{event['id']} left at weight {event['weight']:.2f}"
    if kind == "hint_phase_ended":
        solved = (event["solved_without"], event["solved_by_cover"])
        return "{} hints accepted, dev solved {:.2f} -> {:.2f}".format(event["accepted"], *solved)
    if kind == "notice":
        return " ".join(str(event.get("text", "")).split())[:_NOTICE_CHARS]
    return "finished" if kind == "run_finished" else ""


def ahead(method: float, baseline: float) -> str:
    """The difference of two shares in words: "25 points above", "1 point below", "level with"."""
    gain = round((method - baseline) * 100)
    if not gain:
        return "level with"
    return f"{abs(gain)} point{'s' * (abs(gain) != 1)} {'above' if gain > 0 else 'below'}"


def plain_table(title: str, columns: Sequence[str]) -> Table:
    """A table without a frame: a column of names, then numbers."""
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def cost_table(summary: Row) -> Table:
    """Rollouts by purpose, tokens, LLM calls and time of each arm."""
    arms: Mapping[str, Row] = summary["arms"]
    spent = {name: arm["policy_rollouts"] for name, arm in arms.items()}
    used = {
        purpose: heading
        for purpose, heading in _PURPOSES.items()
        if any(rollouts.get(purpose) for rollouts in spent.values())
    }
    table = plain_table("Cost", [*used.values(), "generated tokens", "LLM calls", "seconds"])
    for name, arm in arms.items():
        table.add_row(
            name,
            *(f"{spent[name].get(purpose, 0):,}" for purpose in used),
            f"{arm['generated_tokens']:,}",
            str(arm["llm_calls"]),
            f"{arm['seconds']:.0f}",
        )
    return table
