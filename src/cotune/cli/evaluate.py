"""`cotune evaluate`: score a run's best policy on held-out questions."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cotune.cli.library_settings import allow_hub, quiet_libraries
from cotune.cli.step_progress import step_progress
from cotune.config.resuming import open_trained, recorded_config
from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError
from cotune.run.full_disk import full_disk_explained
from cotune.run.json_files import plain, write_output
from cotune.run.run_dir import RunDir
from cotune.utils.progress import begin
from cotune.utils.tables import on_console
from cotune.utils.text import command_on

if TYPE_CHECKING:
    from cotune.experiments.evaluate.evaluating import EvaluationOptions
    from cotune.experiments.evaluate.quadrants import Quadrants


def evaluate(
    folder: Path,
    console: Console,
    options: "EvaluationOptions",
    *,
    as_json: bool = False,
    output: Path | None = None,
    assignments: Sequence[str] = (),
) -> None:
    """Score a run's best policy; print tables, or only JSON, and write it to `output`."""
    run, config = _opened(folder, output, assignments)
    if any("=" not in given for given in options.benchmarks):
        allow_hub()
    quiet_libraries(config)
    shown = Console(quiet=True) if as_json else console
    with step_progress(shown):
        begin("reading the questions")
        from cotune.experiments.evaluate.evaluating import evaluate_run
        from cotune.experiments.evaluate.evaluation_table import json_text, show

        evaluation = evaluate_run(config, run, options)
    if output is not None:
        with full_disk_explained(output.parent):
            write_output(output, json_text(evaluation))
    if as_json:
        sys.stdout.write(json_text(evaluation))
    else:
        show(evaluation, console)


def evaluate_quadrants(
    folder: Path,
    console: Console,
    options: "EvaluationOptions",
    since: Path | None,
    as_json: bool,
    output: Path | None,
    assignments: Sequence[str],
) -> None:
    """Score a run's quadrants, write them into its folder, and print them.

    Scores of more questions that are there already are kept.

    Args:
        since: the folder of the first run, if several runs continued one another; None for a single run.
    """
    from cotune.experiments.evaluate.quadrant_evaluation import check_options, evaluate_quadrants
    from cotune.experiments.evaluate.quadrant_table import quadrant_table
    from cotune.experiments.evaluate.quadrants import FILE
    from cotune.experiments.evaluate.quadrants import as_json as content

    check_options(options)
    run, config = _opened(folder, output, assignments)
    if not os.access(run.path, os.W_OK):
        raise ConfigError(
            f"{run.path}: this user may not write into the run folder, where --quadrants keeps its scores; "
            "evaluate a copy"
        )
    first = None if since is None else RunDir.open(since)
    quiet_libraries(config)
    shown = Console(quiet=True) if as_json else console
    with step_progress(shown):
        begin("reading the questions")
        quadrants = evaluate_quadrants(config, run, options, first)
    earlier, scored = _earlier(run.path), len(quadrants.questions)
    # A suite, which scores all questions of a split, must find them again.
    kept = options.limit is not None and earlier is not None and len(earlier.questions) > scored
    if not kept:
        with full_disk_explained(run.path):
            quadrants.write(run.path)
    text = json.dumps(plain(content(quadrants), "quadrants"), indent=2) + "\n"
    if output is not None:
        with full_disk_explained(output.parent):
            write_output(output, text)
    if as_json:
        sys.stdout.write(text)
    else:
        table = quadrant_table(quadrants)
        console.print(on_console(table))
        console.print(table.notes, markup=False, highlight=False, soft_wrap=True)
        told = f"written to {run.path / FILE}; to show them in the report: {command_on(run.path, 'report')}"
        if earlier is not None and kept:
            told = f"{run.path / FILE} keeps the scores of {len(earlier.questions):,} questions"
        console.print(told, markup=False, highlight=False, soft_wrap=True)


def _opened(
    folder: Path, output: Path | None, assignments: Sequence[str]
) -> tuple[RunDir, RunConfig]:
    """Return a run folder and its run file, with some fields of the run file changed."""
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        raise ConfigError(f"--output is {output}; expected a file in a folder that exists")
    if output is not None and not os.access(output if output.exists() else output.parent, os.W_OK):
        raise ConfigError(f"--output is {output}, which this user may not write; name another file")
    run, config = open_trained(folder)
    return run, recorded_config(run, assignments) if assignments else config


def _earlier(folder: Path) -> "Quadrants | None":
    """Return the scores that a run folder keeps; None if there are none, or they cannot be read."""
    from cotune.experiments.evaluate.quadrants import read_quadrants

    try:
        return read_quadrants(folder)
    except ConfigError:
        return None
