"""`cotune train` and `cotune resume`, the same for every engine."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from cotune.config.build import describe_llm
from cotune.config.library_settings import quiet_libraries
from cotune.config.overrides import with_overrides
from cotune.config.resuming import open_trained, resumed_config
from cotune.config.run_file import RunConfig, ScriptRun, load_config, parse_config
from cotune.engines.preflight import Preflight
from cotune.errors import ConfigError, CotuneError, Stopped
from cotune.run.json_files import run_locked
from cotune.run.run_dir import RunDir
from cotune.utils.file_errors import file_failure
from cotune.utils.processes import launched_rank, stopped_by_sigterm
from cotune.utils.progress import step_progress
from cotune.utils.text import command_on, one_line


def train(
    run_file: str | Path | Mapping[str, Any],
    console: Console | None = None,
    quiet: bool = False,
    assignments: Sequence[str] = (),
) -> Path:
    """Train a run file from the start, on any engine, as `cotune train` does; return the run folder.

    Args:
        run_file: its path, or its fields as plain data.
        console: shows the progress; None is standard output.
        quiet: show nothing.
        assignments: fields that replace the run file's, each as `training.steps=600`.

    Raises:
        ConfigError: a field is invalid, or the run folder exists.
        Stopped: it was interrupted; the message says how to resume.
    """
    if isinstance(run_file, Mapping):
        config = parse_config(with_overrides(run_file, assignments), "run_file")
    else:
        config = load_config(run_file, assignments=assignments)
    progress = Console(quiet=quiet) if quiet or console is None else console
    with _stoppable(config.output, new=True):
        _train(config, progress, resume=False)
    return config.output


def resume(
    folder: str | Path,
    console: Console | None = None,
    quiet: bool = False,
    assignments: Sequence[str] = (),
) -> Path:
    """Resume a run folder from its newest complete checkpoint, as `cotune resume` does; return the folder.

    Fields to set are first written to its run.yaml. A run that was stopped after its summary was written
    gets what is missing: a complete best/, and the report. The arguments are those of `train`.

    Raises:
        ConfigError: see `train`; or the run is finished, or is a script's.
    """
    folder = Path(folder)
    run, recorded = open_trained(folder)
    if isinstance(recorded, ScriptRun):
        raise ConfigError(f"{folder}: is a script's run; resume it by {run.how_to_resume()}")
    progress = Console(quiet=quiet) if quiet or console is None else console
    if not assignments and _conclude_late(run, recorded, progress):
        return run.path
    config = resumed_config(run, recorded, assignments)
    # The folder may have been moved since its run file was written.
    with _stoppable(folder):
        _train(config.model_copy(update={"output": run.path}), progress, resume=True)
    return run.path


def _train(config: RunConfig, console: Console, *, resume: bool) -> None:
    """Check a run, load it, and train it to its end."""
    with step_progress(console):
        checked = passed(config, new=not resume)
        setup = checked.engine.prepare(checked, console)
        _show_headline(config, console)
        checked.engine.train(setup, resume=resume)


def passed(config: RunConfig, *, new: bool = True) -> Preflight:
    """Run all checks, cheap ones first, and write nothing; the run folder is to be created if `new`."""
    quiet_libraries(config)
    return Preflight(config, new=new).require()


def _conclude_late(run: RunDir, config: RunConfig, console: Console) -> bool:
    """Do what `conclude` does after the summary if a stop came in between; return whether one did."""
    if run.read_summary() is None or not (run.best_path / "best.json").is_file():
        return False
    from cotune.engines.evaluation import result_files
    from cotune.experiments.report.run_report import write_report
    from cotune.export.export import complete_best, complete_serving

    if complete_serving(run) and run.report_path.is_file():
        return False
    with _stoppable(run.path), run_locked(run.path):
        complete_best(config, run)
        console.out(result_files(run, write_report(run.path)), highlight=False)
    return True


@contextmanager
def _stoppable(folder: Path, new: bool = False) -> Generator[None]:
    """Turn a stop, a failed file operation or a failed call into one line that says how to resume.

    If the run is `new`, one that is there already is another one.
    """
    resume_command = command_on(folder, "resume")
    place = folder.absolute()  # a tool may change the current folder
    another = new and RunDir.is_run(place)
    try:
        with stopped_by_sigterm():
            yield
    except (KeyboardInterrupt, Exception) as error:
        begun = RunDir.is_run(place) and not another
        if isinstance(error, KeyboardInterrupt):
            then = f"; resume with: {resume_command}" if begun else " before anything was written"
            raise Stopped(f"stopped{then}") from None
        if isinstance(error, CotuneError):
            metrics = place / "metrics.jsonl"
            has_trained = begun and metrics.is_file() and metrics.stat().st_size > 0
            if "cotune resume" in str(error) or not has_trained:
                raise
            raise type(error)(f"{error}; then continue: {resume_command}") from error
        if failure := file_failure(error, folder):  # libraries have errors of their own for files
            raise ConfigError(
                f"{failure}, then: {resume_command if begun else 'start again'}"
            ) from error
        raise


def _show_headline(config: RunConfig, console: Console) -> None:
    if launched_rank():
        return
    llm = describe_llm(config.proposer)
    proposals = "" if llm == "none" else f"proposals by {llm}; "
    method = f"{config.strategy.kind} on {config.environment.kind}"
    text = f"{config.name}: {method}, seed {config.seed}; {proposals}folder {config.output}"
    # A run folder may be somebody else's, and hold what a terminal would act on.
    console.print(one_line(text), markup=False, highlight=False)
