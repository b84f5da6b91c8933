"""P²O's hints in a report: which questions were hard, and what each phase of evolution brought."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cotune.experiments.report.charts import Chart
from cotune.experiments.report.hint_figures import hint_charts
from cotune.experiments.report.lineage import Segment, sentence_diff
from cotune.experiments.report.reading import Arm
from cotune.run.json_files import Row

_PHASE_KINDS = ("hint_accepted", "hint_rejected", "proposal_failed")


@dataclass(frozen=True, slots=True)
class Hint:
    """One accepted hint of a phase, or the empty one that it began with.

    Attributes:
        number: its place in the phase; 0 is the empty one.
        text: the hint.
        parent: the number of the hint it was derived from; None for the empty one.
        mean: mean reward on dev; None where the phase did not end.
        covering: whether it is in the cover that hard questions draw from; None as above.
        segments: the text, marked against its parent's.
        solved: places of the dev questions that it solves; None where that was not recorded.
    """

    number: int
    text: str
    parent: int | None
    mean: float | None
    covering: bool | None
    segments: list[Segment]
    solved: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class HintPhase:
    """One phase of hint evolution.

    Attributes:
        started: its "hint_phase" event.
        ended: its "hint_phase_ended" event; {} while there is none.
        hints: the empty one first.
        rejected: its "hint_rejected" events, with their texts marked against the parents'.
        reasons: why proposals were rejected, and how often.
        failed: why calls brought no proposal, and how often.
        order: places of the dev questions, those that most hints solve first.
    """

    started: Row
    ended: Row
    hints: list[Hint]
    rejected: list[tuple[Row, list[Segment]]]
    reasons: list[tuple[str, int]]
    failed: list[tuple[str, int]]
    order: tuple[int, ...] = ()

    @property
    def covered(self) -> tuple[int, ...] | None:
        """The dev questions that some hint of the cover solves; None where unknown."""
        known = [hint.solved for hint in self.hints if hint.covering and hint.solved is not None]
        return tuple(sorted({place for solved in known for place in solved})) if known else None


@dataclass(frozen=True, slots=True)
class Hints:
    """What one arm's hints went through.

    Attributes:
        arm: the run.
        trend: a "hard_samples" event an epoch, with the phase that followed; None where none did.
        charts: of that trend, of groups without advantage and of the context ratio.
        phases: in order.
    """

    arm: Arm
    trend: list[tuple[Row, HintPhase | None]]
    charts: list[Chart]
    phases: list[HintPhase]


def hints_of(arm: Arm) -> Hints | None:
    """None for an arm that mined no hard questions."""
    trend, phases = arm.of_kind("hard_samples"), hint_phases(arm.events)
    if not trend and not phases:
        return None
    by_step = {phase.started["step"]: phase for phase in phases}
    return Hints(
        arm, [(event, by_step.get(event["step"])) for event in trend],
        hint_charts(arm), phases,
    )  # fmt: skip


def hint_phases(events: Sequence[Row]) -> list[HintPhase]:
    """The phases of a run, read from its events."""
    return [_phase(members) for members in _grouped(events)]


def outside_phases(events: Sequence[Row], kind: str) -> list[Row]:
    """The events of a kind that belong to no phase of hint evolution: INSPO's, where both run."""
    inside = {id(event) for members in _grouped(events) for event in members}
    return [event for event in events if event["kind"] == kind and id(event) not in inside]


def _grouped(events: Sequence[Row]) -> Iterator[list[Row]]:
    """The events of each phase, from "hint_phase" to "hint_phase_ended" or to the step's last."""
    members: list[Row] = []
    for event in events:
        opens = event["kind"] == "hint_phase"
        if members and (opens or event["step"] != members[0]["step"]):
            yield members
            members = []
        if opens or (members and event["kind"] in (*_PHASE_KINDS, "hint_phase_ended")):
            members.append(event)
        if members and event["kind"] == "hint_phase_ended":
            yield members
            members = []
    if members:
        yield members


def _phase(members: Sequence[Row]) -> HintPhase:
    def of(kind: str) -> list[Row]:
        return [event for event in members if event["kind"] == kind]

    ended = next(iter(of("hint_phase_ended")), {})
    rejected, failed = of("hint_rejected"), of("proposal_failed")
    solved = {str(row["text"]): tuple(row["dev"]) for row in ended.get("solved") or ()}
    often = Counter(place for places in solved.values() for place in places)
    dev = members[0].get("dev") if solved else 0
    return HintPhase(
        members[0],
        ended,
        [
            replace(hint, solved=solved.get(hint.text))
            for hint in _accepted(of("hint_accepted"), ended)
        ],
        [(e, _marked(_text(e, "parent"), _text(e, "text"))) for e in rejected],
        _counted(rejected),
        _counted(failed),
        tuple(sorted(range(dev or 0), key=lambda place: -often[place])),
    )


def _accepted(events: Sequence[Row], ended: Row) -> list[Hint]:
    cover: Any = ended.get("covering_texts")
    covering = None if cover is None else set(map(str, cover))

    def hint(number: int, text: str, parent: str | None, mean: Any) -> Hint:
        return Hint(
            number,
            text,
            None if parent is None else numbers.get(parent),
            float(mean) if isinstance(mean, (int, float)) else None,
            None if covering is None else text in covering,
            _marked(parent or "", text),
        )

    numbers = {"": 0}
    for number, event in enumerate(events, 1):
        numbers.setdefault(_text(event, "text"), number)
    return [
        # No event holds its mean; the share it solved is that where rewards are 0 and 1.
        hint(0, "", None, ended.get("solved_without")),
        *(
            hint(i, _text(e, "text"), _text(e, "parent"), e.get("mean_dev_score"))
            for i, e in enumerate(events, 1)
        ),
    ]


def _marked(parent: str, text: str) -> list[Segment]:
    """The text with what its parent lacks marked; from the empty hint, nothing is."""
    return sentence_diff(parent, text) if parent.strip() else [("same", text)]


def _text(event: Row, key: str) -> str:
    return str(event.get(key) or "")


def _counted(events: Sequence[Row]) -> list[tuple[str, int]]:
    """Reasons by frequency."""
    return Counter(_text(event, "reason") or "no reason given" for event in events).most_common()
