"""The end of a run, the same for every engine: its summary, a complete best/, the report."""

import logging
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from cotune.config.resuming import recorded_config
from cotune.engines.evaluation import Outcome
from cotune.engines.run_settings import RunSettings
from cotune.experiments.report import write_report
from cotune.export.complete import complete_best
from cotune.protocols import Environment
from cotune.run.notices import truncation_notice
from cotune.run.record import Record
from cotune.run.run_dir import RunDir
from cotune.run.scores import Score
from cotune.utils.text import one_line

_log = logging.getLogger("cotune")


def conclude(
    settings: RunSettings,
    run: Record,
    outcome: Outcome,
    environment: Environment,
    tokenizer: Any = None,
) -> None:
    """Write a finished run's summary, complete best/, write the report, and show the scores."""
    os.chdir(settings.working_folder)  # the policy's path may be relative
    run.event("run_finished", outcome.steps + 1)
    write_run_summary(settings, run, outcome)
    complete_best(recorded_config(run), run, environment, tokenizer)
    report = write_report(run.path)
    if settings.console is None:
        _log.info("step %d: trained; report %s", outcome.steps, report)
    else:
        _show_result(settings.console, run, outcome, report)


def write_run_summary(settings: RunSettings, run: Record, outcome: Outcome) -> None:
    """Write the summary.json of one run, with a single arm."""
    run_settings = settings.record
    kind = run_settings["strategy"]["kind"]
    after = outcome.after
    best = outcome.kept
    totals = run.totals()
    events = run.read_events()
    ended = [row["reason"] for row in events if row["kind"] == "proposals_ended"]
    arm: dict[str, Any] = {
        **_figures("em", after),
        **_figures("em_before", outcome.before),
        **_figures("em_initial_instruction", outcome.plain),
        "measure": after.measure if after else None,
        "em_interval": after.interval if after else None,
        "policy_rollouts": totals.rollouts,
        "generated_tokens": sum(totals.generated_tokens.values()),
        "llm_calls": totals.llm_calls,
        "money": totals.money,
        "seconds": round(run.seconds_spent(), 1),
        "steps": outcome.steps,
        "best_instruction": best.instruction,
        "folder": ".",
        "ended_early": outcome.ended_early or None,
        "failed_phases": sum(row["kind"] == "phase_failed" for row in events),
        "proposals_ended": ended[-1] if ended else None,
        "best_step": best.step,
        "kept": best.statement(),
    }
    if outcome.hinted:
        arm |= _figures("em_with_hint", outcome.hinted)
    if best.observed_rollouts is not None:
        arm["best_instruction_observed_rollouts"] = best.observed_rollouts
        arm["too_close_to_call"] = best.too_close_to_call
    run.write_summary(
        {
            "name": run_settings["name"],
            "strategy": kind,
            "seed": settings.seed,
            "llm": settings.llm_name,
            "policy": run_settings["policy"]["path"],
            "arms": {kind: arm},
            "asked_steps": run_settings["training"]["steps"],
            "rollout_budget": settings.rollout_budget,
            "best_instruction": best.instruction,
        }
    )


def _figures(name: str, score: Score | None) -> dict[str, Any]:
    """Return a score as entries of a summary's arm; None if it was not measured."""
    if score is None:
        return {name: None}
    by_stratum = {stratum: em for stratum, (em, _) in score.by_stratum.items()}
    return {name: score.em, f"{name}_by_stratum": by_stratum, f"{name}_n": score.n}


def _show_result(console: Console, run: RunDir, outcome: Outcome, report: Path) -> None:
    steps = run.read_metrics()
    if cut := truncation_notice(steps[-1]) if steps else "":
        console.print(f"[yellow]last step: {cut}[/]", highlight=False)
    best = outcome.kept
    text = f"best instruction {best.instruction_id}: {one_line(best.instruction)}"
    console.print(text, markup=False, highlight=False)
    console.out(result_files(run, report), highlight=False)


def result_files(run: RunDir, report: Path) -> str:
    """Say where the best policy and the report are, a line each."""
    return f"best policy: {run.best_path}\nreport: {report}"
