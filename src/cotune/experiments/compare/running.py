"""Runs a suite, shows it, and writes down what it came to."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cotune.config.cost import plan_run
from cotune.errors import ConfigError, CotuneError, Stopped
from cotune.experiments.compare.cells import Cell, State, run_cells
from cotune.experiments.compare.methods import METHODS, method_named
from cotune.experiments.compare.progress import Progress, held
from cotune.experiments.compare.stages import Setting, check_rows, rows_of
from cotune.experiments.compare.suite_file import SuiteConfig, load_suite
from cotune.methods.registry import added
from cotune.run.json_files import Row as Json
from cotune.run.ledger import policy_rollouts
from cotune.run.run_dir import RunDir, read_summary, write_summary


class SuiteFailed(CotuneError):
    """Some methods of a suite failed; the others are reported. Exit status 1."""


def compare(path: Path, console: Console, assignments: Sequence[str] = ()) -> Json:
    """Runs what a suite is missing, writes its summary and its report; returns the summary.

    Args:
        path: the suite file.
        console: where it is shown.
        assignments: fields of it that are set, as `seeds=[0]`.

    Raises:
        ConfigError: the suite file, or the folder, is not one that can be worked on.
        Stopped: Ctrl-C; the next call goes on.
        SuiteFailed: methods failed, or paid for more or fewer rollouts than their class.
    """
    suite, base = load_suite(path, assignments)
    rows = rows_of(suite, base)
    check_rows(rows)
    _check_folder(suite.output)
    cells = [Cell(row) for row in rows]
    setting = Setting.of(rows)
    progress = Progress(suite, setting)
    console.print(_heading(suite), markup=False, highlight=False)
    with held(suite.output):
        try:
            _watch(cells, suite.at_once, console, progress)
        except KeyboardInterrupt:
            progress(cells)
            _write(suite, cells, setting)
            raise Stopped(f"stopped; go on with: cotune compare {path}") from None
        summary = _write(suite, cells, setting)
    _show(summary, suite, console)
    wrong = [row for row in summary["methods"] if row["status"] in ("failed", "unequal")]
    if refused := [r for r in wrong if r["status"] == "failed" or suite.unequal == "refuse"]:
        told = "; ".join(f"{row['label']}: {row['problem']}" for row in refused)
        raise SuiteFailed(
            f"{len(refused)} of {len(suite.methods)} methods are not in the comparison: {told}"
        )
    return summary


def dry_run(path: Path, console: Console, assignments: Sequence[str] = ()) -> None:
    """Shows what a suite would run, every run file checked, and runs nothing."""
    suite, base = load_suite(path, assignments)
    rows = rows_of(suite, base)
    check_rows(rows)
    console.print(_heading(suite), markup=False, highlight=False)
    table = Table(show_edge=False, pad_edge=False)
    for column in ("method", "stage", "strategy", "steps", "policy rollouts", "LLM calls"):
        right = column in ("steps", "policy rollouts", "LLM calls")
        table.add_column(column, justify="right" if right else "left")
    for row in rows[: len(suite.methods)]:
        for index, stage in enumerate(row.method.stages):
            config = row.config(index, (), {})
            trained = row.command(index) == ("train",)
            planned = plan_run(config) if trained else None
            table.add_row(
                row.label if index == 0 else "",
                stage.name,
                config.strategy.kind if trained else "",
                f"{config.training.steps:,}" if trained else "",
                f"{policy_rollouts(planned.rollouts):,}" if planned else "none",
                f"up to {planned.calls:,}" if planned and planned.calls else "",
            )
    console.print(table)
    runs = sum(len(row.method.stages) for row in rows)
    done = sum(
        read_summary(row.stage_folder(i)) is not None
        for row in rows
        for i in range(len(row.method.stages))
    )
    seeds = len(suite.seeds)
    console.print(
        f"{runs} run{'s' * (runs != 1)} over {seeds} seed{'s' * (seeds != 1)}; {done} of them "
        f"{'is' if done == 1 else 'are'} there already"
    )


def list_methods(console: Console) -> None:
    """What a suite can name."""
    table = Table(show_edge=False, pad_edge=False)
    for column in ("method", "group", "compute", "what it is"):
        table.add_column(column)
    for name in (*METHODS, *added()):
        method = method_named(name)
        table.add_row(name, method.group, method.compute, f"{method.label}: {method.about}")
    console.print(table)


def _heading(suite: SuiteConfig) -> str:
    seeds = f"seed{'s' * (len(suite.seeds) != 1)} {', '.join(map(str, suite.seeds))}"
    return (
        f"{suite.name}: {len(suite.methods)} methods, {seeds}, "
        f"{suite.budget:,} policy rollouts each; folder {suite.output}"
    )


def _check_folder(folder: Path) -> None:
    """A suite's folder is new, or a suite's."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"output: {folder} is a file; choose another folder")
    if RunDir.is_run(folder) or (any(folder.iterdir()) and not (folder / "suite.lock").exists()):
        raise ConfigError(f"output: {folder} holds something else; choose another folder")


def _write(suite: SuiteConfig, cells: Sequence[Cell], setting: Setting) -> Json:
    """The summary and the report of what is there."""
    from cotune.experiments.compare.results import summarise
    from cotune.experiments.report.suite_report import write_suite_report

    summary = summarise(suite, cells, setting)
    write_summary(suite.output, summary)
    write_suite_report(suite.output, summary)
    return summary


def _show(summary: Json, suite: SuiteConfig, console: Console) -> None:
    from cotune.experiments.compare.suite_table import suite_table

    console.print(suite_table(summary))
    console.print(summary["verdict"], style="bold", markup=False, highlight=False)
    if suite.caption:
        console.print(suite.caption, style="dim", markup=False, highlight=False)
    console.print(f"report: {suite.output / 'report.html'}", markup=False, highlight=False)


def _watch(cells: Sequence[Cell], at_once: int, console: Console, progress: Progress) -> None:
    """Runs the cells: a table that is redrawn on a terminal, lines elsewhere."""
    lines = _Lines(console)

    def told(now: Sequence[Cell]) -> None:
        progress(now)
        lines(now)

    if not console.is_terminal:
        run_cells(cells, at_once, told)
        return
    with Live(console=console, refresh_per_second=2) as live:

        def drawn(now: Sequence[Cell]) -> None:
            progress(now)
            live.update(_progress(now))

        run_cells(cells, at_once, drawn)


def _progress(cells: Sequence[Cell]) -> Table:
    counts = {state: sum(cell.state == state for cell in cells) for state in State}
    table = Table(
        title=", ".join(f"{count} {state}" for state, count in counts.items() if count),
        title_justify="left",
        show_edge=False,
        pad_edge=False,
    )
    for column in ("run", "stage", "step", "reward"):
        table.add_column(column)
    for cell in cells:
        if cell.state == State.RUNNING:
            table.add_row(*map(Text, _told(cell)))
        elif cell.state == State.FAILED:
            table.add_row(Text(cell.name), Text("failed", style="red"), "", Text(cell.problem[:80]))
    return table


def _told(cell: Cell) -> tuple[str, str, str, str]:
    step, steps, reward = cell.step()
    stages = cell.row.method.stages
    stage = stages[min(cell.stage, len(stages) - 1)].name
    return cell.name, stage, f"{step}/{steps}", "" if reward is None else f"{reward:.2f}"


class _Lines:
    """Progress as plain lines, where there is no terminal to redraw."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[str, str] = {}

    def __call__(self, cells: Sequence[Cell]) -> None:
        done = sum(cell.state == State.DONE for cell in cells)
        for cell in cells:
            line = self._line(cell)
            if line and self._shown.get(cell.name) != line:
                self._shown[cell.name] = line
                count = f" ({done} of {len(cells)})" if cell.state == State.DONE else ""
                self._console.print(f"{cell.name}: {line}{count}", markup=False, highlight=False)

    @staticmethod
    def _line(cell: Cell) -> str:
        """What is worth a line of its own: the beginning, every tenth step, the end."""
        if cell.state == State.FAILED:
            return f"failed: {cell.problem}"
        if cell.state != State.RUNNING:
            return "done" if cell.state == State.DONE else ""
        _, stage, step, reward = _told(cell)
        number = int(step.partition("/")[0])
        if number == 0:
            return f"{stage} begins"
        told = f", reward {reward}" if reward else ""
        return "" if number % 10 else f"{stage}, step {step}{told}"
