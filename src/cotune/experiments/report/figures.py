"""The report's charts: what goes into each, from the arms' lines."""

from collections.abc import Iterable, Sequence

from cotune.experiments.report.charts import COLOURS, Chart, Series, line_chart, moving_average
from cotune.experiments.report.lineage import Life
from cotune.experiments.report.reading import Arm
from cotune.run.json_files import Row
from cotune.run.scores import EXACT_MATCH, MEAN_REWARD

_SMOOTH_FROM, _MOST_POINTS = 20, 500
_MORE = {
    "loss": "Loss",
    "entropy": "Entropy of the policy (nats per token)",
    "grad_norm": "Gradient norm",
}


def style(index: int) -> str:
    """The CSS class of the arm or instruction at `index`."""
    return f"s{index % COLOURS}"


def values(rows: Iterable[Row], key: str) -> list[tuple[float, float]]:
    """(step, value) where a row has a number under `key`, the last one of a step."""
    found = {row["step"]: row[key] for row in rows if isinstance(row.get(key), (int, float))}
    return sorted((float(step), float(value)) for step, value in found.items())


def thinned(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most about `most` of the points, evenly apart, the last among them: pages stay small."""
    apart = max(1, -(-len(points) // most))
    return [point for i, point in enumerate(points) if (len(points) - 1 - i) % apart == 0]


def _metric_chart(arms: Sequence[Arm], key: str, title: str, percent: bool) -> Chart | None:
    curves = [(arm.name, values(arm.metrics, key)) for arm in arms]
    return smooth_chart(title, curves, percent)


def smooth_chart(
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
            averaged = thinned(moving_average(points, window), _MOST_POINTS)
            raw = thinned(points, _MOST_POINTS)
            series.append(Series(name, averaged, style(i), raw=raw))
    if not any(s.points for s in series):
        return None
    note = f"Faint: each step. Line: mean of the last {window} steps." if window else ""
    legend = tuple((s.style, s.name) for s in series if s.points) if len(curves) > 1 else ()
    return Chart(title, line_chart(title, series, percent=percent), legend, note)


_BEFORE = "resample/reward_mean_before"


def reward_chart(arms: Sequence[Arm]) -> Chart | None:
    """Training reward of each step; as per cent where it is the share of exact matches."""
    shares = all(arm.measure == EXACT_MATCH for arm in arms)
    filtered = [arm for arm in arms if any(_BEFORE in row for row in arm.metrics)]
    if filtered and len(filtered) == len(arms):
        title = "Training reward per step, before groups were replaced"
        return _metric_chart(arms, _BEFORE, title, percent=shares)
    curves = [
        # The field of both engines; TRL's own name is all that a run of an early version has.
        (arm.name, values(arm.metrics, "reward_mean") or values(arm.metrics, "reward"))
        for arm in arms
    ]
    return smooth_chart("Training reward per step", curves, shares)


def zero_advantage_chart(arms: Sequence[Arm]) -> Chart | None:
    """The share of groups that teach nothing: all their rewards are equal."""
    title = "Share of groups without advantage"
    return _metric_chart(arms, "zero_advantage_share", title, percent=True)


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
            Series(name, values(rows, "em"), style(len(series) if several else i), dots=True)
        )
    series = [s for s in series if s.points]
    if not any(x > 0 for s in series for x, _ in s.points):
        return None  # nothing was trained: before and after would stand on each other
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
    later = {row["id"] for row in arm.instructions if row.get("born")}
    # A run without the lines of births: those that are not there from the first.
    later |= {
        name
        for name, life in lives.items()
        if not arm.instructions and life.weights and life.weights[0][0] > first
    }
    series = [
        Series(
            name,
            thinned(life.weights, _MOST_POINTS),
            colours.get(name, "muted"),
            label=name if name in colours else "",
            born=name in later,
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
