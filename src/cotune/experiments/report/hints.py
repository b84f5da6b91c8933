"""P²O's hints in a report: which questions were hard, and what each phase of evolution produced."""

from collections.abc import Iterable
from typing import Any

from cotune.experiments.report.charts import Chart, Series, curves_chart, line_chart, style
from cotune.experiments.report.recorded_run import RecordedRun, values
from cotune.run.json_files import Row

Phase = dict[str, list[Row]]
"""The events of a phase of hint evolution, by kind."""

_PHASE_KINDS = (
    "hint_phase",
    "hint_accepted",
    "hint_rejected",
    "proposal_failed",
    "hint_phase_ended",
)
_HARD = {
    "hard": "hard",
    "newly_hard": "newly hard",
    "graduated": "graduated",
    "solved_by_hint": "graduated under hints",
}


def hints_of(run: RecordedRun) -> dict[str, Any] | None:
    """Read the charts and phases of a run's hints; None if it mined no hard questions."""
    phases, _ = hint_phases(run.events)
    if not run.of_kind("hard_samples") and not phases:
        return None
    return {"charts": hint_charts(run), "phases": phases}


def hint_phases(events: Iterable[Row]) -> tuple[list[Phase], list[Row]]:
    """Return the phases of hint evolution, and the "proposal_failed" events outside them: INSPO's, if both run.

    A phase that was cut off ends with its step.
    """
    phases: list[Phase] = []
    others: list[Row] = []
    step: int | None = None
    for event in events:
        kind = event["kind"]
        if kind == "hint_phase":
            phases.append({name: [] for name in _PHASE_KINDS})
            step = event["step"]
        if event["step"] != step:
            step = None
        if step is not None and kind in _PHASE_KINDS:
            phases[-1][kind].append(event)
        elif kind == "proposal_failed":
            others.append(event)
        if kind == "hint_phase_ended":
            step = None
    return phases, others


def hint_charts(run: RecordedRun) -> list[Chart]:
    """Draw a run's hard questions and masked tokens."""
    hard = [{**event, "step": event["epoch"] + 1} for event in run.of_kind("hard_samples")]
    counts = [
        Series(name, values(hard, key), style(i)) for i, (key, name) in enumerate(_HARD.items())
    ]
    hinted = [("with hints", "_hinted"), ("without", "_plain")]
    groups = [(name, run.values(f"zero_advantage_share{key}")) for name, key in hinted]
    masked = [("masked", run.values("p2o/ratio_masked_share"))]
    charts = (
        line_chart("Hard questions by epoch", counts, x_label="epoch"),
        curves_chart("Groups without advantage, at steps with hints", groups, share=True),
        curves_chart("Share of masked tokens of hinted rollouts", masked, share=True),
    )
    return [chart for chart in charts if chart]
