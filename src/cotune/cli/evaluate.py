"""`cotune evaluate`: score a run's best policy on held-out questions."""

import json
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cotune.cli.library_settings import allow_hub, quiet_libraries
from cotune.cli.step_progress import step_progress
from cotune.config.resuming import open_trained
from cotune.config.run_file import RunConfig
from cotune.engines.engine import engine_of
from cotune.errors import ConfigError
from cotune.run.json_files import plain
from cotune.run.run_dir import RunDir
from cotune.utils.progress import begin
from cotune.utils.tables import on_console
from cotune.utils.text import command_on, one_line

if TYPE_CHECKING:
    from cotune.experiments.evaluate.questions import EvaluationOptions


def evaluate(
    folder: Path,
    console: Console,
    options: "EvaluationOptions",
    as_json: bool,
    assignments: Sequence[str],
) -> None:
    """Score a run's best policy; print tables, or only JSON."""
    from cotune.experiments.evaluate.evaluation import evaluate_run, show_evaluation

    run, config = open_trained(folder, assignments)
    with _measuring(config, options, console, as_json):
        evaluation = evaluate_run(config, run, options, engine_of(config).open_policy)
    if as_json:
        _print_json(plain(asdict(evaluation), "evaluation"))
    else:
        show_evaluation(evaluation, console)


def evaluate_quadrants(
    folder: Path,
    console: Console,
    options: "EvaluationOptions",
    since: Path | None,
    as_json: bool,
    assignments: Sequence[str],
) -> None:
    """Score a run's quadrants and print them; those of all questions are kept in its folder.

    Args:
        since: the folder of the first run, if several runs continued one another; None for a single run.
    """
    from cotune.experiments.evaluate import quadrants as files

    run, config = open_trained(folder, assignments)
    if options.limit is None and not os.access(run.path, os.W_OK):
        raise ConfigError(
            f"{run.path}: this user may not write into the run folder, where --quadrants keeps its scores; "
            "evaluate a copy, or some questions with --limit"
        )
    first = None if since is None else RunDir.open(since)
    with _measuring(config, options, console, as_json):
        engine = engine_of(config)
        alike = engine.samples_alike(config)
        quadrants = files.evaluate_quadrants(config, run, options, first, engine.open_policy, alike)
    place = "not kept, since --limit leaves questions out"
    if options.limit is None:
        quadrants.write(run.path)
        report = command_on(run.path, "report")
        place = f"written to {run.path / files.FILE}; to show them in the report: {report}"
    if as_json:
        _print_json(plain(files.as_json(quadrants), "quadrants"))
        return
    table = files.quadrant_table(quadrants)
    console.print(on_console(table))
    for line in map(one_line, (table.notes, place)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _measuring(
    config: RunConfig, options: "EvaluationOptions", console: Console, as_json: bool
) -> Generator[None]:
    if any("=" not in benchmark for benchmark in options.benchmarks):
        allow_hub()
    quiet_libraries(config)
    with step_progress(Console(quiet=True) if as_json else console):
        begin("reading the questions")
        yield


def _print_json(figures: Any) -> None:
    """Print figures as indented ASCII text, which every terminal can show."""
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
