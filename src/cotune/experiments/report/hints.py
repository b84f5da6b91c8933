"""P²O's hints in a report: which questions were hard, and what each phase of evolution produced."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cotune.experiments.report.charts import (
    Chart,
    Series,
    column_chart,
    curves_chart,
    line_chart,
    style,
)
from cotune.experiments.report.instructions import Segment, reasons, sentence_diff
from cotune.experiments.report.pages import count
from cotune.experiments.report.recorded_run import RecordedRun, values
from cotune.run.json_files import Row
from cotune.types import Distillation

_PHASE_KINDS = ("hint_accepted", "hint_rejected", "proposal_failed", "hint_phase_ended")
_LEAST_RATIO = 1e-12  # smaller ratios are drawn at this value


@dataclass(frozen=True, slots=True)
class Hint:
    """One accepted hint of a phase, or the empty one that it started from.

    Attributes:
        number: its place in the phase; 0 is the empty one.
        parent: the number of the hint it was derived from; None for the empty one.
        mean: mean reward on dev; None if the phase did not end.
        covering: it is in the cover that hard questions draw from; None as above.
        segments: the text, marked against its parent's.
        solved: places of the dev questions that it solves; () as above.
    """

    number: int
    text: str
    parent: int | None
    mean: float | None
    covering: bool | None
    segments: list[Segment]
    solved: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HintPhase:
    """One phase of hint evolution.

    Attributes:
        started: its "hint_phase" event.
        ended: its "hint_phase_ended" event; {} if it has not ended.
        hints: the empty one first.
        rejected: its "hint_rejected" events, with their texts marked against the parents'.
        reasons: why proposals were rejected, and how often.
        failed: why calls returned no proposal, and how often.
        order: places of the dev questions, those that most hints solve first; () if it has not
            ended.
    """

    started: Row
    ended: Row
    hints: list[Hint]
    rejected: list[tuple[Row, list[Segment]]]
    reasons: list[tuple[str, int]]
    failed: list[tuple[str, int]]
    order: tuple[int, ...]

    @property
    def covered(self) -> tuple[int, ...] | None:
        """The dev questions that some hint of the cover solves; None without a cover."""
        cover = [hint.solved for hint in self.hints if hint.covering]
        return tuple(sorted({place for solved in cover for place in solved})) if cover else None


@dataclass(frozen=True, slots=True)
class Hints:
    """The history of a run's hints.

    Attributes:
        trend: a "hard_samples" event an epoch, with the phase that followed; None if none did.
        charts: charts of that trend, of groups without advantage and of the context ratio.
        phases: the phases in order.
    """

    trend: list[tuple[Row, HintPhase | None]]
    charts: list[Chart]
    phases: list[HintPhase]


def hints_of(run: RecordedRun) -> Hints | None:
    """Read the history of a run's hints; None if it mined no hard questions."""
    trend, phases = run.of_kind("hard_samples"), hint_phases(run.events)
    if not trend and not phases:
        return None
    by_step = {phase.started["step"]: phase for phase in phases}
    followed = [(event, by_step.get(event["step"])) for event in trend]
    return Hints(followed, hint_charts(run), phases)


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
    solved = {row["text"]: tuple(row["dev"]) for row in ended.get("solved", ())}
    often = Counter(place for places in solved.values() for place in places)
    dev = members[0]["dev"] if ended else 0
    # The empty hint first. No event holds its mean; the share it solved is that for rewards 0 and 1.
    empty: Row = {"text": "", "parent": "", "mean_dev_score": ended.get("solved_without")}
    hints: list[Hint] = []
    numbers: dict[str, int] = {}
    for number, event in enumerate([empty, *of("hint_accepted")]):
        text = event["text"]
        numbers.setdefault(text, number)
        hints.append(
            Hint(
                number,
                text,
                numbers.get(event["parent"]) if number else None,
                event["mean_dev_score"],
                text in ended["covering_texts"] if ended else None,
                _marked(event),
                solved.get(text, ()),
            )
        )
    rejected = of("hint_rejected")
    return HintPhase(
        members[0],
        ended,
        hints,
        [(event, _marked(event)) for event in rejected],
        reasons(rejected),
        reasons(of("proposal_failed")),
        tuple(sorted(range(dev), key=lambda place: -often[place])),
    )


def _marked(event: Row) -> list[Segment]:
    """Return a hint's text, with what its parent lacks marked; nothing is if the parent is empty."""
    parent, text = event["parent"], event["text"]
    return sentence_diff(parent, text) if parent.strip() else [("same", text)]


def hint_charts(run: RecordedRun) -> list[Chart]:
    """Draw a run's hard questions, groups without advantage, and context ratios."""
    hard = [{**event, "step": event["epoch"] + 1} for event in run.of_kind("hard_samples")]
    hard_names = {
        "hard": "hard",
        "newly_hard": "newly hard",
        "graduated": "graduated",
        "solved_by_hint": "graduated under hints",
    }
    steps = [{**row, **_by_hint(row)} for row in run.metrics]
    group_names = {
        "zero_advantage_share_hinted": "groups with hints",
        "zero_advantage_share_plain": "groups without hints",
        "hinted_share": "hinted rollouts, share of all",
    }
    masked = [("masked", run.values("p2o/ratio_masked_share"))]
    exponents = {
        name: [
            (step, math.log10(max(value, _LEAST_RATIO)))
            for step, value in run.values(f"p2o/ratio_{name}")
        ]
        for name in ("min", "mean", "max")
    }
    drawn = (
        line_chart(
            "Hard questions by epoch",
            [
                Series(name, values(hard, key), style(i), dots=True)
                for i, (key, name) in enumerate(hard_names.items())
            ],
            x_label="epoch",
        ),
        curves_chart(
            "Groups without advantage, with and without hints",
            [(name, values(steps, key)) for key, name in group_names.items()],
            "share",
        ),
        _histogram(run),
        curves_chart("Share of masked tokens of hinted rollouts", masked, "share"),
        line_chart(
            "Context ratio of tokens, without / with the hint",
            [Series(name, curve, style(i)) for i, (name, curve) in enumerate(exponents.items())],
            unit="power",
        ),
    )
    return [chart for chart in drawn if chart]


def _by_hint(row: Row) -> Row:
    """Return what a step without any hint says about groups with and without one."""
    if "hinted_share" in row or "zero_advantage_share" not in row:
        return {}
    return {"zero_advantage_share_plain": row["zero_advantage_share"], "hinted_share": 0.0}


def _histogram(run: RecordedRun) -> Chart | None:
    """Draw all context ratios of a run, from its "context_ratios" events; None without any."""
    found = run.of_kind("context_ratios")
    if not found:
        return None
    counts = [sum(each) for each in zip(*(event["counts"] for event in found), strict=True)]
    low, high = found[0]["log10_from"], found[0]["log10_to"]
    mask = _mask(run.config)
    title = "Context ratios of the whole run"
    note = (
        f"{count(sum(counts))} tokens of hinted rollouts by π(token without hint) / "
        "π(token with hint)."
    )
    if mask:
        note += " Dotted: the mask's bounds; grey tokens weigh nothing, unless the advantage is positive."
    bounds = (math.log10(max(mask.low, _LEAST_RATIO)), math.log10(mask.high)) if mask else None
    return Chart(title, column_chart(title, counts, low, high, bounds), note=note)


def _mask(config: Row) -> Distillation | None:
    """Return the mask of the resolved run file, or None."""
    strategy = config.get("strategy", {})
    settings = strategy.get("p2o", strategy).get("distillation", {})
    if settings.get("ratio") != "masked_signed":
        return None
    return Distillation(**{name: settings[name] for name in ("ratio", "low", "high")})
