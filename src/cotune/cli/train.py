"""`cotune train` and `cotune resume`, the same for every engine."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cotune.cli.library_settings import quiet_libraries
from cotune.cli.step_progress import step_progress
from cotune.config.build import describe_llm
from cotune.config.resuming import open_trained, resumed_config
from cotune.config.run_file import RunConfig, dump_config, load_config
from cotune.engines.engine import engine_of, record_settings
from cotune.engines.preflight import Preflight
from cotune.engines.run_summary import write_run_summary
from cotune.errors import CotuneError, EvolutionError, Stopped
from cotune.protocols import Environment
from cotune.run.console import score_table
from cotune.run.full_disk import full_disk_explained
from cotune.run.locks import run_locked
from cotune.run.record import Record
from cotune.run.run_dir import RunDir
from cotune.run.truncation import truncation_notice
from cotune.utils.importing import uncollected
from cotune.utils.processes import launched_rank
from cotune.utils.stopping import stopped_by_sigterm
from cotune.utils.text import command_on, one_line

if TYPE_CHECKING:
    from cotune.engines.evaluation import Outcome


def train(
    path: Path, console: Console, quiet: bool = False, assignments: Sequence[str] = ()
) -> Path:
    """Train a run file from the start, after setting some fields; return the run folder."""
    config = load_config(path, assignments=assignments)
    shown = Console(quiet=True) if quiet else console
    with _stoppable(config.output, config, new=True), step_progress(shown):
        with uncollected():
            checked = passed(config)
            folder = RunDir(config.output).checkpoints_path
            setup = checked.engine.prepare(checked, folder)
        with run_locked(config.output, new=True):
            run = _created(config, shown)
            run.charge_check(checked.llm_calls)
            _show_headline(config, run, shown)
            engine_of(config).train(config, run, setup, None, shown, conclude)
    return run.path


def resume(
    folder: Path, console: Console, quiet: bool = False, assignments: Sequence[str] = ()
) -> Path:
    """Resume a run folder from its newest complete checkpoint; return the folder.

    Fields to set are first written to its run.yaml. A run that was stopped after its summary was written
    gets what is missing: a complete best/, and the report.
    """
    trained, was = open_trained(folder)
    if not assignments and _concluded_late(trained, was, Console(quiet=True) if quiet else console):
        return trained.path
    step = engine_of(was).checkpoint_step(was, trained.checkpoints_path)
    config = resumed_config(trained, was, assignments, step)
    shown = Console(quiet=True) if quiet else console
    with _stoppable(folder, config), run_locked(folder), step_progress(shown):
        with uncollected():
            checked = passed(config, new=False)
            setup = checked.engine.prepare(checked, trained.checkpoints_path)
        run = _opened(config, folder, shown)
        chosen = checked.engine.choose(run, setup)
        run.charge_check(checked.llm_calls)
        if assignments:
            _on_first_rank(lambda: run.replace_config(dump_config(config)))
        _show_headline(config, run, shown)
        checked.engine.train(config, run, setup, chosen, shown, conclude)
    return run.path


def passed(
    config: RunConfig,
    *,
    new: bool = True,
) -> Preflight:
    """Run all checks, cheap ones first; write nothing.

    Args:
        new: whether the run folder is still to be created.

    Raises:
        ConfigError: a check failed.
    """
    quiet_libraries(config)
    return Preflight(config, new=new).require()


def conclude(
    config: RunConfig,
    run: Record,
    outcome: "Outcome",
    environment: Environment,
    shown: Console,
) -> None:
    """Write a finished run's summary, complete best/, write the report, and print the scores."""
    run.event("run_finished", outcome.steps + 1)
    write_run_summary(config, run, outcome)
    from cotune.export.complete import complete_best

    complete_best(config, run, environment)
    report = _reported(run)
    rows = [
        ("before", outcome.before),
        ("after", outcome.after),
        ("after, initial instruction", outcome.plain),
        *([("after, with the best hint", outcome.hinted)] if outcome.hinted else []),
    ]
    shown.print(score_table(f"Held-out {outcome.after.measure}", rows))
    steps = run.read_metrics()
    if cut := truncation_notice(steps[-1]) if steps else "":
        shown.print(f"[yellow]last step: {cut}[/]", highlight=False)
    text = f"best instruction {outcome.instruction_id}: {one_line(outcome.instruction)}"
    shown.print(text, markup=False, highlight=False)
    shown.out(report, highlight=False)


def _concluded_late(run: RunDir, config: RunConfig, shown: Console) -> bool:
    """Do what `conclude` does after the summary if a stop came in between; return whether one did."""
    if run.read_summary() is None or not (run.best_path / "best.json").is_file():
        return False
    from cotune.export.complete import complete_best, is_complete

    if is_complete(run):
        return False
    with _stoppable(run.path, config), run_locked(run.path):
        complete_best(config, run)
        shown.out(_reported(run), highlight=False)
    return True


def _reported(run: RunDir) -> str:
    """Write the report; return where it and the best policy are."""
    from cotune.experiments.report import write_report

    return f"best policy: {run.best_path}\nreport: {write_report(run.path)}"


@contextmanager
def _stoppable(folder: Path, config: RunConfig, new: bool = False) -> Generator[None]:
    """Turn a stop, a full disk, a useless LLM or a failed call into one line that says how to resume.

    Args:
        new: whether the run is to be created, so that a run that is there already is another one.
    """
    another = new and RunDir.is_run(folder)

    def begun() -> bool:
        return RunDir.is_run(folder) and not another

    def again() -> str:
        return command_on(folder, "resume") if begun() else "start again"

    try:
        with stopped_by_sigterm(), full_disk_explained(folder, again):
            yield
    except KeyboardInterrupt:
        if begun():
            raise Stopped(f"stopped; resume with: {command_on(folder, 'resume')}") from None
        raise Stopped("stopped before anything was written") from None
    except EvolutionError as error:
        raise EvolutionError(f"{error}; {_without_proposals(folder, config)}") from error
    except CotuneError as error:
        if "cotune resume" in str(error) or not (begun() and _has_trained(folder)):
            raise
        raise type(error)(f"{error}; then continue: {command_on(folder, 'resume')}") from error


def _has_trained(folder: Path) -> bool:
    """Return whether a run has finished a step."""
    try:
        return bool(RunDir.open(folder).read_metrics())
    except (OSError, CotuneError):
        return False


def _without_proposals(folder: Path, config: RunConfig) -> str:
    """Return how to resume a run whose LLM calls all failed."""
    resume = command_on(folder, "resume")
    if not hasattr(config.llm, "optional"):
        return f"then: {resume}"
    corrected = f"{resume} --set llm.model=…" if hasattr(config.llm, "model") else resume
    return f"then: {corrected}, or: {resume} --set llm.optional=true"


def _created(config: RunConfig, shown: Console) -> Record:
    """Create the run folder in the first process; return its record once all processes can see it."""
    records: list[Record] = []
    settings = record_settings(config, shown)
    _on_first_rank(
        lambda: records.append(Record.create(config.output, dump_config(config), **settings))
    )
    return records[0] if records else Record(config.output, silent=True)


def _opened(config: RunConfig, folder: Path, shown: Console) -> Record:
    """Return the record of a run to resume, which only the first process writes."""
    if launched_rank():
        return Record(folder, silent=True)
    return Record.open(folder, **record_settings(config, shown))


def _show_headline(config: RunConfig, run: Record, shown: Console) -> None:
    llm, what = (
        describe_llm(config.proposer),
        f"{config.strategy.kind} on {config.environment.kind}",
    )
    proposals = "" if llm == "none" else f"proposals by {llm}; "
    text = f"{config.name}: {what}, seed {config.seed}; {proposals}folder {run.path}"
    _on_first_rank(lambda: shown.print(text, markup=False, highlight=False))


def _on_first_rank(act: Any) -> None:
    """Call a function in the first process while the others wait."""
    from cotune.engines.comm import world

    comm = world()
    if comm.rank == 0:
        act()
    comm.broadcast(None)
