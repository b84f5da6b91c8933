"""Run a suite, show its progress and its result, and write its summary and its report."""

import json
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from rich.console import Console

from cotune.config.build import describe_llm
from cotune.config.cost import plan_run
from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError, Stopped
from cotune.experiments.chains import ChainsFailed, print_progress, run_chains
from cotune.experiments.compare.cells import Cell, cells_of
from cotune.experiments.compare.suite_file import SuiteConfig, load_suite
from cotune.experiments.compare.suite_summary import SuiteSummary
from cotune.run.costs import policy_rollouts
from cotune.run.locks import locked
from cotune.run.run_dir import RunDir, write_summary
from cotune.utils.output import output_may_be_lost
from cotune.utils.packages import need
from cotune.utils.processes import stopped_by_sigterm
from cotune.utils.tables import on_console, plain_table
from cotune.utils.text import one_line

_LOCK = "suite.lock"


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
        ChainsFailed: rows failed, or used more or fewer rollouts than their class allows.
    """
    suite, base = load_suite(path, assignments)
    _check_folder(suite.output)
    cells = cells_of(suite, base)
    printed = set[str]()

    def watch() -> None:
        if print_progress(cells, printed, console):
            _write(suite, cells)  # for a reader while it runs

    busy = f"output: {suite.output} is being worked on by another cotune compare; wait for it, or stop it"
    _print_heading(suite, cells, console)
    with output_may_be_lost(), locked(suite.output / _LOCK, busy):
        try:
            with stopped_by_sigterm():
                run_chains(cells, suite.at_once, watch)
        except KeyboardInterrupt:
            _write(suite, cells)
            fields = (word for assignment in assignments for word in ("--set", assignment))
            command = again or shlex.join(["cotune", "compare", str(path), *fields])
            raise Stopped(f"stopped; resume with: {command}") from None
        summary = _write(suite, cells)
    _show(summary, suite, console)
    excluded = [row for row in summary.methods if row.status in ("failed", "unequal")]
    if excluded:
        reasons = "; ".join(f"{row.label}: {row.problem}" for row in excluded)
        raise ChainsFailed(
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
    need("trl", "cotune demo")
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
    cells = cells_of(suite, base)
    _print_heading(suite, cells, console)
    numbers = ("steps", "policy rollouts", "LLM calls")
    table = plain_table("", ("method", "stage", "strategy"), numbers)
    configs: list[RunConfig] = []
    for cell in cells[: len(suite.methods)]:
        for stage, config in zip(cell.stages, cell.planned, strict=True):
            planned = plan_run(config)
            rollouts = policy_rollouts(planned.rollouts)
            table.add_row(
                cell.label if stage == cell.stages[0] else "",
                stage,
                config.strategy.kind,
                f"{config.training.steps:,}",
                f"{min(rollouts, config.training.rollout_budget or rollouts):,}",
                f"up to {planned.calls:,}" if planned.calls else "",
            )
        configs += cell.planned
    console.print(table)
    finished = sum(cell.state == "done" for cell in cells)
    console.print(f"runs: {len(cells)}, of {len(suite.methods)} methods; finished: {finished}")
    return configs


def _llms(cells: Sequence[Cell]) -> str:
    """Return the LLMs that propose in any stage of a suite; "none" without one."""
    names = {describe_llm(config.proposer) for cell in cells for config in cell.planned}
    return ", ".join(sorted(names - {"none"})) or "none"


def _print_heading(suite: SuiteConfig, cells: Sequence[Cell], console: Console) -> None:
    llms = _llms(cells)
    heading = (
        f"{suite.name}: {len(suite.methods)} methods on {cells[0].planned[0].environment.kind}, "
        f"seeds {', '.join(map(str, suite.seeds))}, {suite.budget:,} policy rollouts each"
        f"{'' if llms == 'none' else f'; proposals by {llms}'}; folder {suite.output}"
    )
    console.print(one_line(heading), markup=False, highlight=False)


def _check_folder(folder: Path) -> None:
    """Raise ConfigError unless a folder is new, empty, or a suite's."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"output: {folder} is a file; choose another folder")
    foreign = folder.exists() and any(folder.iterdir()) and not (folder / _LOCK).exists()
    if foreign or RunDir.is_run(folder):
        raise ConfigError(f"output: {folder} holds something else; choose another folder")


def _write(suite: SuiteConfig, cells: Sequence[Cell]) -> SuiteSummary:
    """Write the summary of the runs that are finished, and its page."""
    from cotune.experiments.compare.results import summarise
    from cotune.experiments.report.suite_report import write_suite_report

    summary = summarise(suite, cells, _llms(cells))
    write_summary(suite.output, summary.model_dump())
    write_suite_report(suite.output, summary)
    return summary


def _show(summary: SuiteSummary, suite: SuiteConfig, console: Console) -> None:
    from cotune.experiments.compare.suite_table import suite_tables

    def line(text: str, style: str = "") -> None:
        if text:
            console.print(one_line(text), style=style, markup=False, highlight=False)

    for table in suite_tables(summary, brief=True).values():
        console.print(on_console(table))
        console.print()
    for method in summary.methods:
        line(method.complaint, "yellow")
    line(summary.verdict, "bold")
    line(suite.caption, "dim")
    changed = [m for m in summary.methods if m.score and m.plain and m.plain.mean != m.score.mean]
    if changed:
        best = max(changed, key=lambda method: method.score.mean if method.score else 0.0)
        line(f"best instruction ({best.label}): {best.instruction}")
    line(f"folder: {suite.output}   report: {suite.output / 'report.html'}")
