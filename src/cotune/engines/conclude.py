"""The end of a run, the same for every engine: its summary, a complete best/, the report."""

import logging
import os
from pathlib import Path

from rich.console import Console

from cotune.engines.evaluation import Outcome
from cotune.engines.run_start import RunSettings
from cotune.engines.run_summary import write_run_summary
from cotune.experiments.report import write_report
from cotune.export.complete import complete_best
from cotune.protocols import Environment
from cotune.run.console import score_table
from cotune.run.notices import truncation_notice
from cotune.run.record import Record
from cotune.run.run_dir import RunDir
from cotune.utils.text import one_line

_log = logging.getLogger("cotune")


def conclude(
    settings: RunSettings,
    run: Record,
    outcome: Outcome,
    environment: Environment,
) -> None:
    """Write a finished run's summary, complete best/, write the report, and show the scores."""
    os.chdir(settings.working_folder)  # the policy's path may be relative
    run.event("run_finished", outcome.steps + 1)
    write_run_summary(settings, run, outcome)
    if settings.run_file is not None:
        complete_best(settings.run_file, run, environment)
    report = write_report(run.path)
    if settings.console is None:
        _log_result(run, outcome, report)
    else:
        _show_result(settings.console, run, outcome, report)


def _log_result(run: RunDir, outcome: Outcome, report: Path) -> None:
    best = outcome.kept
    score = "not checked on validation"
    if best is not None and best.validated:
        score = f"{best.measure} {best.em:.3f} on validation"
    _log.info(
        "step %d: trained; best instruction %s, %s; report %s",
        outcome.steps,
        outcome.instruction_id,
        score,
        report,
    )


def _show_result(console: Console, run: RunDir, outcome: Outcome, report: Path) -> None:
    if outcome.after is not None:
        rows = [
            ("before", outcome.before),
            ("after", outcome.after),
            ("after, initial instruction", outcome.plain),
            *([("after, with the best hint", outcome.hinted)] if outcome.hinted else []),
        ]
        console.print(score_table(f"Held-out {outcome.after.measure}", rows))
    steps = run.read_metrics()
    if cut := truncation_notice(steps[-1]) if steps else "":
        console.print(f"[yellow]last step: {cut}[/]", highlight=False)
    text = f"best instruction {outcome.instruction_id}: {one_line(outcome.instruction)}"
    console.print(text, markup=False, highlight=False)
    console.out(result_files(run, report), highlight=False)


def result_files(run: RunDir, report: Path) -> str:
    """Say where the best policy and the report are, a line each."""
    return f"best policy: {run.best_path}\nreport: {report}"
