"""`cotune evaluate`: score a run's best policy on held-out questions."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cotune.cli.library_settings import allow_hub, quiet_libraries
from cotune.cli.step_progress import say_loading, step_progress
from cotune.cli.train import open_trained
from cotune.config.resuming import recorded_config
from cotune.errors import ConfigError
from cotune.run.json_files import write_atomic

if TYPE_CHECKING:
    from cotune.experiments.evaluate.evaluating import EvaluationOptions


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
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        raise ConfigError(f"--output is {output}; expected a file in a folder that exists")
    run, config = open_trained(folder)
    if assignments:
        config = recorded_config(run, assignments)
    if any("=" not in given for given in options.benchmarks):
        allow_hub()
    quiet_libraries(config)
    shown = Console(quiet=True) if as_json else console
    say_loading(config, shown)
    from cotune.experiments.evaluate.evaluating import evaluate_run
    from cotune.experiments.evaluate.evaluation_table import json_text, show

    with step_progress(shown):
        evaluation = evaluate_run(config, run, options)
    if output is not None:
        write_atomic(output, json_text(evaluation))
    if as_json:
        sys.stdout.write(json_text(evaluation))
    else:
        show(evaluation, console)
