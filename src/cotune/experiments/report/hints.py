"""P²O's hints in a report: which questions were hard, and what each phase of evolution produced."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cotune.experiments.report.charts import Chart, Series, curves_chart, line_chart, style
from cotune.experiments.report.instructions import Segment, reasons, sentence_diff
from cotune.experiments.report.recorded_run import RecordedRun, values
from cotune.run.json_files import Row

_PHASE_KINDS = ("hint_accepted", "hint_rejected", "proposal_failed", "hint_phase_ended")


@dataclass(frozen=True, slots=True)
class Hint:
    """One accepted hint of a phase, or the empty one that it started from.

    Attributes:
        parent: the number of the hint it was derived from; None for the empty one.
        mean: mean reward on dev; None if the phase did not end.
        covering: it is in the cover that hard questions draw from; None as above.
        segments: the text, marked against its parent's.
        solved: places of the dev questions that it solves; empty as above.
    """

    text: str
    parent: int | None
    mean: float | None
    covering: bool | None
    segments: list[Segment]
    solved: frozenset[int]


@dataclass(frozen=True, slots=True)
class HintPhase:
    """One phase of hint evolution.

    Attributes:
        started, ended: its first and its last event; `ended` is {} if it has not ended.
        hints: the empty one first; a hint's number is its place.
        rejected: its "hint_rejected" events, with their texts marked against the parents'.
        reasons, failed: why proposals were rejected and calls returned none, and how often.
        order: places of the dev questions, those that most hints solve first; () if it has not ended.
    """

    started: Row
    ended: Row
    hints: list[Hint]
    rejected: list[tuple[Row, list[Segment]]]
    reasons: list[tuple[str, int]]
    failed: list[tuple[str, int]]
    order: tuple[int, ...]

    @property
    def covered(self) -> frozenset[int]:
        """The dev questions that some hint of the cover solves."""
        return frozenset[int]().union(*(hint.solved for hint in self.hints if hint.covering))


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
    def of(kind: str) -> list[Row]:
        return [event for event in members if event["kind"] == kind]

    ended: Row = next(iter(of("hint_phase_ended")), {})
    solved = {row["text"]: frozenset(row["dev"]) for row in ended.get("solved", ())}
    often = Counter(place for places in solved.values() for place in places)
    # The empty hint first. No event holds its mean; the share it solved is that for rewards 0 and 1.
    empty: Row = {"text": "", "parent": "", "mean_dev_score": ended.get("solved_without")}
    hints: list[Hint] = []
    numbers: dict[str, int] = {}
    for number, event in enumerate([empty, *of("hint_accepted")]):
        text = event["text"]
        numbers.setdefault(text, number)
        hints.append(
            Hint(
                text,
                numbers.get(event["parent"]) if number else None,
                event["mean_dev_score"],
                text in ended["covering_texts"] if ended else None,
                _marked(event),
                solved.get(text, frozenset()),
            )
        )
    rejected = of("hint_rejected")
    dev = range(members[0]["dev"] if ended else 0)
    return HintPhase(
        members[0],
        ended,
        hints,
        [(event, _marked(event)) for event in rejected],
        reasons(rejected),
        reasons(of("proposal_failed")),
        tuple(sorted(dev, key=lambda place: -often[place])),
    )


def _marked(event: Row) -> list[Segment]:
    """Return a hint's text, with what its parent lacks marked; nothing is if the parent is empty."""
    parent, text = event["parent"], event["text"]
    return sentence_diff(parent, text) if parent.strip() else [("same", text)]


def hint_charts(run: RecordedRun) -> list[Chart]:
    """Draw a run's hard questions, groups without advantage, and masked tokens."""
    hard = [{**event, "step": event["epoch"] + 1} for event in run.of_kind("hard_samples")]
    hard_names = {
        "hard": "hard",
        "newly_hard": "newly hard",
        "graduated": "graduated",
        "solved_by_hint": "graduated under hints",
    }
    counts = [
        Series(name, values(hard, key), style(i))
        for i, (key, name) in enumerate(hard_names.items())
    ]
    steps = [{**row, **_by_hint(row)} for row in run.metrics]
    group_names = {
        "zero_advantage_share_hinted": "groups with hints",
        "zero_advantage_share_plain": "groups without hints",
        "hinted_share": "hinted rollouts, share of all",
    }
    groups = [(name, values(steps, key)) for key, name in group_names.items()]
    masked = [("masked", run.values("p2o/ratio_masked_share"))]
    charts = (
        line_chart("Hard questions by epoch", counts, x_label="epoch"),
        curves_chart("Groups without advantage, with and without hints", groups, share=True),
        curves_chart("Share of masked tokens of hinted rollouts", masked, share=True),
    )
    return [chart for chart in charts if chart]


def _by_hint(row: Row) -> Row:
    """Return what a step without any hint says about groups with and without one."""
    if "hinted_share" in row or "zero_advantage_share" not in row:
        return {}
    return {"zero_advantage_share_plain": row["zero_advantage_share"], "hinted_share": 0.0}
