"""Write summary.json: the result of a finished run."""

from typing import TYPE_CHECKING, Any

from cotune.engines.run_start import RunSettings
from cotune.run.record import Record
from cotune.run.scores import Score

if TYPE_CHECKING:
    from cotune.engines.evaluation import Outcome


def write_run_summary(settings: RunSettings, run: Record, outcome: "Outcome") -> None:
    """Write the summary.json of one run, with a single arm."""
    record = settings.record
    after = outcome.after
    totals = run.totals()
    kind = record["strategy"]["kind"]
    events = run.read_events()
    ended = [row["reason"] for row in events if row["kind"] == "proposals_ended"]
    arm: dict[str, Any] = {
        **_score("em", after),
        **_score("em_before", outcome.before),
        **_score("em_initial_instruction", outcome.plain),
        "measure": after.measure if after else None,
        "em_interval": list(interval) if after and (interval := after.interval) else None,
        "policy_rollouts": dict(totals.rollouts),
        "generated_tokens": sum(totals.generated_tokens.values()),
        "llm_calls": totals.llm_calls,
        "money": totals.money,
        "seconds": round(_seconds_spent(run), 1),
        "steps": outcome.steps,
        "best_instruction": outcome.instruction,
        "folder": ".",
        "ended_early": outcome.ended_early or None,
        "failed_phases": sum(row["kind"] == "phase_failed" for row in events),
        "proposals_ended": ended[-1] if ended else None,
    }
    if outcome.hinted:
        arm |= _score("em_with_hint", outcome.hinted)
    if (best := outcome.kept) is not None:
        arm["best_step"] = best.step
        arm["kept"] = best.statement()
        if best.observed_rollouts is not None:
            arm["best_instruction_observed_rollouts"] = best.observed_rollouts
            arm["too_close_to_call"] = best.too_close_to_call
    run.write_summary(
        {
            "name": record["name"],
            "strategy": kind,
            "seed": settings.seed,
            "llm": settings.llm_name,
            "policy": record["policy"]["path"],
            "arms": {kind: arm},
            "asked_steps": record["training"]["steps"],
            "rollout_budget": settings.rollout_budget,
            "best_instruction": outcome.instruction,
        }
    )


def _seconds_spent(run: Record) -> float:
    """Return the wall time of all attempts, each from its first line to its last."""
    spans: dict[int, list[float]] = {}
    for row in (*run.read_events(), *run.read_metrics()):
        spans.setdefault(int(row["attempt"]), []).append(float(row["time"]))
    return sum(max(times) - min(times) for times in spans.values())


def _score(name: str, score: Score | None) -> dict[str, Any]:
    """Return a score as entries of a summary's arm; None if it was not measured."""
    if score is None:
        return {name: None}
    return {
        name: score.em,
        f"{name}_by_stratum": {k: em for k, (em, _n) in score.by_stratum.items()},
        f"{name}_n": score.n,
    }
