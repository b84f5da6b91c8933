"""P²O's hints in a report: which questions were hard, and what each phase of evolution produced."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cotune.experiments.report.charts import Chart, Series, curves_chart, line_chart, style
from cotune.experiments.report.instructions import Segment, reasons, sentence_diff
from cotune.experiments.report.recorded_run import RecordedRun, values
from cotune.run.json_files import Row

_PHASE_KINDS = ("hint_accepted", "hint_rejected", "proposal_failed", "hint_phase_ended")
_HARD = {
    "hard": "hard",
    "newly_hard": "newly hard",
    "graduated": "graduated",
    "solved_by_hint": "graduated under hints",
}


@dataclass(frozen=True)
class HintPhase:
    """One phase of hint evolution.

    Attributes:
        started, ended: its first and its last event; `ended` is {} if it has not ended.
        hints: its "hint_accepted" events, with their texts marked against the parents'.
        rejected: its "hint_rejected" events, likewise.
        reasons, failed: why proposals were rejected and calls returned none, and how often.
    """

    started: Row
    ended: Row
    hints: list[tuple[Row, list[Segment]]]
    rejected: list[tuple[Row, list[Segment]]]
    reasons: list[tuple[str, int]]
    failed: list[tuple[str, int]]


def hints_of(run: RecordedRun) -> dict[str, Any] | None:
    """Read the charts and phases of a run's hints; None if it mined no hard questions."""
    phases = hint_phases(run.events)
    if not run.of_kind("hard_samples") and not phases:
        return None
    return {"charts": hint_charts(run), "phases": phases}


def hint_phases(events: Sequence[Row]) -> list[HintPhase]:
    """Read the phases of hint evolution from a run's events."""
    return [_phase(members) for members in _grouped(events)]


def outside_phases(events: Sequence[Row], kind: str) -> list[Row]:
    """Return the events of a kind outside phases of hint evolution: INSPO's, if both run."""
    inside = {id(event) for members in _grouped(events) for event in members}
    return [event for event in events if event["kind"] == kind and id(event) not in inside]


def _grouped(events: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield the events of each phase, from "hint_phase" to "hint_phase_ended" or the step's last."""
    members: list[Row] = []
    for event in events:
        opens = event["kind"] == "hint_phase"
        if members and (opens or event["step"] != members[0]["step"]):
            yield members
            members = []
        if opens or (members and event["kind"] in _PHASE_KINDS):
            members.append(event)
        if members and event["kind"] == "hint_phase_ended":
            yield members
            members = []
    if members:
        yield members


def _phase(members: Sequence[Row]) -> HintPhase:
    by_kind = {kind: [e for e in members if e["kind"] == kind] for kind in _PHASE_KINDS}
    hints, rejected = (
        [(event, sentence_diff(event["parent"], event["text"])) for event in by_kind[kind]]
        for kind in ("hint_accepted", "hint_rejected")
    )
    return HintPhase(
        members[0],
        next(iter(by_kind["hint_phase_ended"]), {}),
        hints,
        rejected,
        reasons(by_kind["hint_rejected"]),
        reasons(by_kind["proposal_failed"]),
    )


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
