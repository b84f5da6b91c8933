"""The report's charts: what goes into each, from the arms' lines."""

import math
from collections.abc import Iterable, Sequence

from cotune.experiments.evaluate import EXACT_MATCH, MEAN_REWARD
from cotune.experiments.report.charts import COLOURS, Chart, Series, line_chart, moving_average
from cotune.experiments.report.lineage import Life
from cotune.experiments.report.reading import Arm
from cotune.json_files import Row

_SMOOTH_FROM = 20
_LEAST_RATIO = 1e-12  # what is smaller is drawn there
_MORE = {
    "loss": "Loss",
    "entropy": "Entropy of the policy (nats per token)",
    "grad_norm": "Gradient norm",
    "zero_advantage_share": "Share of groups without advantage",
}


def style(index: int) -> str:
    """The CSS class of the arm or instruction at `index`."""
    return f"s{index % COLOURS}"


def _values(rows: Iterable[Row], key: str) -> list[tuple[float, float]]:
    """(step, value) where a row has a number under `key`, the last one of a step."""
    found = {row["step"]: row[key] for row in rows if isinstance(row.get(key), (int, float))}
    return sorted((float(step), float(value)) for step, value in found.items())


def _metric_chart(arms: Sequence[Arm], key: str, title: str, percent: bool) -> Chart | None:
    curves = [(arm.name, _values(arm.metrics, key)) for arm in arms]
    return _smooth_chart(title, curves, percent)


def _smooth_chart(
    title: str, curves: Sequence[tuple[str, list[tuple[float, float]]]], percent: bool
) -> Chart | None:
    """Named curves over the steps, averaged where they are long; None where there is no point."""
    series: list[Series] = []
    window = 0
    for i, (name, points) in enumerate(curves):
        if len(points) < _SMOOTH_FROM:
            series.append(Series(name, points, style(i), dots=len(points) < 8))
        else:
            window = max(5, round(len(points) / 20))
            averaged = moving_average(points, window)
            series.append(Series(name, averaged, style(i), raw=points))
    if not any(s.points for s in series):
        return None
    note = f"Faint: each step. Line: mean of the last {window} steps." if window else ""
    legend = tuple((s.style, s.name) for s in series if s.points) if len(curves) > 1 else ()
    return Chart(title, line_chart(title, series, percent=percent), legend, note)


def reward_chart(arms: Sequence[Arm]) -> Chart | None:
    """Training reward of each step; as per cent where it is the share of exact matches."""
    shares = all(arm.measure == EXACT_MATCH for arm in arms)
    return _metric_chart(arms, "reward", "Training reward per step", percent=shares)


def more_charts(arms: Sequence[Arm]) -> list[Chart]:
    """What else tells how training went, where it was recorded."""
    drawn = (_metric_chart(arms, key, title, percent=False) for key, title in _MORE.items())
    return [chart for chart in drawn if chart]


def held_out_chart(arms: Sequence[Arm]) -> Chart | None:
    """Held-out scores over training, one series per arm and split.

    From the initial instruction before training to the best one of its time; the trained policy
    under the initial instruction is in the table, not here.
    """
    curves: list[tuple[int, Arm, str, list[Row]]] = []
    for i, arm in enumerate(arms):
        found = [
            event
            for event in arm.of_kind("evaluated")
            if event.get("when") not in ("plain", "hinted")
        ]
        for split in sorted({str(event.get("split", "")) for event in found}):
            rows = [event for event in found if str(event.get("split", "")) == split]
            curves.append(
                (i, arm, split, [{**e, "step": e.get("trained", e["step"])} for e in rows])
            )
    several = len({split for _, _, split, _ in curves}) > 1
    series: list[Series] = []
    for i, arm, split, rows in curves:
        words = [arm.name] if len(arms) > 1 or not several else []
        name = ", ".join([*words, split] if several else words)
        series.append(
            Series(name, _values(rows, "em"), style(len(series) if several else i), dots=True)
        )
    series = [s for s in series if s.points]
    if not series:
        return None
    measure = common_measure(arms)
    title = f"Held-out {measure}"
    legend = tuple((s.style, s.name) for s in series) if len(series) > 1 else ()
    chart = line_chart(title, series, percent=measure == EXACT_MATCH)
    return Chart(title, chart, legend)


def common_measure(arms: Sequence[Arm]) -> str:
    """What the arms' scores are of; of arms that differ it is the mean reward."""
    measures = {arm.measure for arm in arms}
    return measures.pop() if len(measures) == 1 else MEAN_REWARD


def population_chart(arm: Arm, lives: dict[str, Life]) -> Chart | None:
    """Each instruction's weight over its life: survivors in colour, the pruned in grey."""
    alive = [name for name, life in lives.items() if life.weights and life.pruned is None]
    alive.sort(key=lambda name: -lives[name].weights[-1][1])
    colours = {name: style(i) for i, name in enumerate(alive)}
    first = min((life.weights[0][0] for life in lives.values() if life.weights), default=0)
    series = [
        Series(
            name,
            life.weights,
            colours.get(name, "muted"),
            label=name if name in colours else "",
            born=life.weights[0][0] > first,
            died=life.pruned is not None,
            strong=name == arm.best,
        )
        for name, life in lives.items()
        if life.weights
    ]
    if not series:
        return None
    phases = [event["step"] for event in arm.of_kind("evolution")]
    chart = line_chart(
        f"Weight of each instruction over the steps, {arm.name}",
        series,
        guides=phases,
    )
    note = "○ born, × pruned. Colour: alive at the end, labelled; thick: the best. Grey: pruned."
    if phases:
        note += " Dotted: evolution phases."
    return Chart("Weight of each instruction", chart, (), note)


def hint_charts(arm: Arm) -> list[Chart]:
    """Of a run with hints: its hard questions, groups without advantage, and context ratios."""
    steps = [{**row, **_by_hint(row)} for row in arm.metrics]
    groups = [(name, _values(steps, key)) for key, name in _GROUPS.items()]
    masked = [("masked", _values(arm.metrics, "p2o/ratio_masked_share"))]
    drawn = (
        _hard_chart(arm),
        _smooth_chart("Groups without advantage, with and without hints", groups, percent=True),
        _ratio_chart(arm),
        _smooth_chart("Share of masked tokens of hinted rollouts", masked, percent=True),
    )
    return [chart for chart in drawn if chart]


_GROUPS = {
    "zero_advantage_share_hinted": "groups with hints",
    "zero_advantage_share_plain": "groups without hints",
    "hinted_share": "hinted rollouts, share of all",
}


def _by_hint(row: Row) -> Row:
    """What a step without any hint says of groups with and without one."""
    if "hinted_share" in row or "zero_advantage_share" not in row:
        return {}
    return {"zero_advantage_share_plain": row["zero_advantage_share"], "hinted_share": 0.0}


def _hard_chart(arm: Arm) -> Chart | None:
    """Hard questions by epoch, and what became of them."""
    rows = [{**event, "step": event["epoch"] + 1} for event in arm.of_kind("hard_samples")]
    names = {
        "hard": "hard",
        "newly_hard": "newly hard",
        "graduated": "graduated",
        "solved_by_hint": "graduated under hints",
    }
    series = [
        Series(name, _values(rows, key), style(i), dots=True)
        for i, (key, name) in enumerate(names.items())
    ]
    if not any(s.points for s in series):
        return None
    title = "Hard questions by epoch"
    legend = tuple((s.style, s.name) for s in series)
    return Chart(title, line_chart(title, series, x_label="epoch"), legend)


def _ratio_chart(arm: Arm) -> Chart | None:
    """Context ratios of the tokens of distilled rollouts, on a logarithmic scale."""
    series = [
        Series(
            name,
            [
                (step, math.log10(max(value, _LEAST_RATIO)))
                for step, value in _values(arm.metrics, f"p2o/ratio_{name}")
            ],
            style(i),
        )
        for i, name in enumerate(("min", "mean", "max"))
    ]
    if not any(s.points for s in series):
        return None
    title = "Context ratio of tokens, without / with the hint"
    legend = tuple((s.style, s.name) for s in series)
    return Chart(title, line_chart(title, series, powers=True), legend)
