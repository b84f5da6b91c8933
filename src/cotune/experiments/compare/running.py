"""Run a suite, show its progress and its result, and write its summary and its report."""

import json
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from rich.console import Console

from cotune.config.cost import plan_run
from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError, CotuneError, Stopped
from cotune.experiments.compare.cells import Cell, State, check_settings, run_cells
from cotune.experiments.compare.methods import method_named, method_names
from cotune.experiments.compare.stages import check_rows, rows_of, setting_of
from cotune.experiments.compare.suite_file import SuiteConfig, load_suite
from cotune.experiments.compare.suite_summary import SuiteMethod, SuiteSummary
from cotune.run.costs import policy_rollouts
from cotune.run.locks import locked
from cotune.run.run_dir import RunDir, read_summary, write_summary
from cotune.utils.output import output_may_be_lost
from cotune.utils.packages import need_trl
from cotune.utils.stopping import stopped_by_sigterm
from cotune.utils.tables import on_console, plain_table

_LOCK = "suite.lock"


class SuiteFailed(CotuneError):
    """Some rows of a suite failed; the others are reported. Exit status 1."""


def compare(
    path: Path, console: Console, assignments: Sequence[str] = (), again: str | None = None
) -> SuiteSummary:
    """Run what a suite is missing, write its summary and its report; return the summary.

    Args:
        assignments: fields that replace the file's, as in `seeds=[0]`.
        again: the command that resumes the suite; None for `cotune compare`.

    Raises:
        ConfigError: the suite file is invalid, or its folder holds something else.
        Stopped: Ctrl-C; the next call resumes.
        SuiteFailed: rows failed, or used more or fewer rollouts than their class allows.
    """
    suite, base = load_suite(path, assignments)
    rows = rows_of(suite, base)
    check_rows(rows)
    _check_folder(suite.output)
    check_settings(rows)
    cells, setting = [Cell(row) for row in rows], setting_of(rows)
    lines, states = _Lines(console), list[str]()
    fields = (word for assignment in assignments for word in ("--set", assignment))
    command = again or shlex.join(["cotune", "compare", str(path), *fields])

    def watch(now: Sequence[Cell]) -> None:
        nonlocal states
        if states != (states := [f"{cell.state} {cell.stage}" for cell in now]):
            _write(suite, now, setting, page=False)  # for cotune report
        lines(now)

    busy = f"output: {suite.output} is being worked on by another cotune compare; wait for it, or stop it"
    _print_heading(suite, setting, console)
    with output_may_be_lost(), locked(suite.output / _LOCK, busy):
        try:
            with stopped_by_sigterm():
                run_cells(cells, suite.at_once, watch)
        except KeyboardInterrupt:
            _write(suite, cells, setting)
            raise Stopped(f"stopped; resume with: {command}") from None
        summary = _write(suite, cells, setting)
    _show(summary, suite, console)
    excluded = [row for row in summary.methods if row.status in ("failed", "unequal")]
    if excluded:
        reasons = "; ".join(f"{row.label}: {row.problem}" for row in excluded)
        raise SuiteFailed(
            f"{len(excluded)} of {len(suite.methods)} methods are not in the comparison: {reasons}"
        )
    return summary


def demo(folder: Path, seed: int, console: Console) -> SuiteSummary:
    """Run the suite that ships with this package; return its summary.

    A stopped demo is resumed, and of a finished one the result is shown again. Another seed is added to
    the same folder.

    Raises:
        ConfigError: TRL is not installed, or the folder holds something else.
        Stopped: Ctrl-C.
    """
    need_trl("cotune demo")
    suites = resources.files("cotune.experiments.compare") / "suites"
    with resources.as_file(suites / "demo.yaml") as file:
        fields = (f"output={json.dumps(str(folder))}", f"seeds=[{seed}]")
        words = ["cotune", "demo", "--output", str(folder), "--seed", str(seed)]
        return compare(file, console, fields, shlex.join(words))


def dry_run(path: Path, console: Console, assignments: Sequence[str] = ()) -> list[RunConfig]:
    """Show what a suite would run, and return its run files, still to be checked; run nothing.

    Raises:
        ConfigError: `cotune train` would reject a run file on any machine.
    """
    suite, base = load_suite(path, assignments)
    rows = rows_of(suite, base)
    check_rows(rows)
    check_settings(rows)
    _print_heading(suite, setting_of(rows), console)
    left, right = ("method", "stage", "strategy"), ("steps", "policy rollouts", "LLM calls")
    table = plain_table("", left, right)
    configs: list[RunConfig] = []
    for row in rows[: len(suite.methods)]:
        for index, (stage, config) in enumerate(zip(row.method.stages, row.planned, strict=True)):
            planned = plan_run(config)
            rollouts = policy_rollouts(planned.rollouts)
            configs.append(config)
            table.add_row(
                row.label if index == 0 else "",
                stage.name,
                config.strategy.kind,
                f"{config.training.steps:,}",
                f"{min(rollouts, config.training.rollout_budget or rollouts):,}",
                f"up to {planned.calls:,}" if planned.calls else "",
            )
    console.print(table)
    folders = [row.stage_folder(i) for row in rows for i in range(len(row.method.stages))]
    finished = sum(read_summary(folder) is not None for folder in folders)
    console.print(f"runs: {len(folders)}, over {len(suite.seeds)} seeds; finished: {finished}")
    return configs


def list_methods(console: Console) -> None:
    """Show the methods that a suite can name."""
    table = plain_table("", ("method", "group", "what it is"), ())
    for name in method_names():
        method = method_named(name)
        table.add_row(name, method.group, f"{method.label}: {method.about}")
    console.print(table)


def _print_heading(suite: SuiteConfig, setting: Mapping[str, str], console: Console) -> None:
    llm = "" if setting["llm"] == "none" else f"; proposals by {setting['llm']}"
    console.print(
        f"{suite.name}: {len(suite.methods)} methods on {setting['environment']}, "
        f"seeds {', '.join(map(str, suite.seeds))}, {suite.budget:,} policy rollouts each{llm}; "
        f"folder {suite.output}",
        markup=False,
        highlight=False,
    )


def _check_folder(folder: Path) -> None:
    """Raise ConfigError unless a folder is new, empty, or a suite's."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"output: {folder} is a file; choose another folder")
    if RunDir.is_run(folder) or (any(folder.iterdir()) and not (folder / _LOCK).exists()):
        raise ConfigError(f"output: {folder} holds something else; choose another folder")


def _write(
    suite: SuiteConfig, cells: Sequence[Cell], setting: Mapping[str, str], *, page: bool = True
) -> SuiteSummary:
    """Write the summary of the runs that are finished, and its page."""
    from cotune.experiments.compare.results import summarise
    from cotune.experiments.report.suite_report import write_suite_report

    summary = summarise(suite, cells, setting)
    write_summary(suite.output, summary.model_dump())
    if page:
        write_suite_report(suite.output, summary)
    return summary


def _show(summary: SuiteSummary, suite: SuiteConfig, console: Console) -> None:
    from cotune.experiments.compare.suite_table import best_instruction, console_tables

    for table in console_tables(summary):
        console.print(on_console(table))
        console.print()
    for line in filter(None, (summary.missing, *map(SuiteMethod.complaint, summary.methods))):
        console.print(line, style="yellow", markup=False, highlight=False)
    console.print(summary.verdict, style="bold", markup=False, highlight=False)
    if suite.caption:
        console.print(suite.caption, style="dim", markup=False, highlight=False)
    report = suite.output / "report.html"
    for line in filter(
        None, (best_instruction(summary), f"folder: {suite.output}   report: {report}")
    ):
        console.print(line, markup=False, highlight=False)


class _Lines:
    """Progress as lines, each printed once: a start, every tenth step, an end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = set[tuple[str, str]]()

    def __call__(self, cells: Sequence[Cell]) -> None:
        finished = sum(cell.state == State.DONE for cell in cells)
        for cell in cells:
            line, details = self._line(cell)
            if line and (cell.name, line) not in self._printed:
                self._printed.add((cell.name, line))
                count = f" ({finished} of {len(cells)})" if cell.state == State.DONE else ""
                text = f"{cell.name}: {line}{details}{count}"
                self._console.print(text, markup=False, highlight=False)

    @staticmethod
    def _line(cell: Cell) -> tuple[str, str]:
        """Return what is printed once, and what to add to it."""
        if cell.state == State.FAILED:
            return f"failed: {cell.problem}", ""
        if cell.state != State.RUNNING:
            return "done" if cell.state == State.DONE else "", ""
        step, reward = cell.progress()
        if step == 0:
            return f"{cell.working} begins", ""
        details = "" if reward is None else f", reward {reward:.2f}"
        return ("" if step % 10 else f"{cell.working}, step {step} of {cell.steps}"), details
