"""The charts of a run with hints: hard questions, groups without advantage, context ratios."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from cotune.experiments.report.charts import Chart, Series, column_chart, line_chart
from cotune.experiments.report.figures import smooth_chart, style, values
from cotune.experiments.report.reading import Arm
from cotune.run.json_files import Row
from cotune.types import Distillation

_LEAST_RATIO = 1e-12  # what is smaller is drawn there


def hint_charts(arm: Arm) -> list[Chart]:
    """Of a run with hints: its hard questions, groups without advantage, and context ratios."""
    steps = [{**row, **_by_hint(row)} for row in arm.metrics]
    groups = [(name, values(steps, key)) for key, name in _GROUPS.items()]
    masked = [("masked", values(arm.metrics, "p2o/ratio_masked_share"))]
    drawn = (
        _hard_chart(arm),
        smooth_chart("Groups without advantage, with and without hints", groups, percent=True),
        _histogram(arm),
        smooth_chart("Share of masked tokens of hinted rollouts", masked, percent=True),
        _ratio_chart(arm),
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
        Series(name, values(rows, key), style(i), dots=True)
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
                for step, value in values(arm.metrics, f"p2o/ratio_{name}")
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


def _histogram(arm: Arm) -> Chart | None:
    """All context ratios of a run, from its "context_ratios" events; None of runs without any."""
    found: dict[tuple[float, float, int], list[int]] = {}
    for event in arm.of_kind("context_ratios"):
        counts = event["counts"]
        bins = (event["log10_from"], event["log10_to"], len(counts))
        old = found.setdefault(bins, [0] * len(counts))
        found[bins] = [a + b for a, b in zip(old, counts, strict=True)]
    if not found or not any(map(sum, found.values())):
        return None
    # Should versions with other bins have written to one folder, what most tokens are in.
    (low, high, _), counts = max(found.items(), key=lambda item: sum(item[1]))
    bounds = _bounds(arm.config)
    title = "Context ratios of the whole run"
    svg = column_chart(title, counts, low, high, bounds)
    total = f"{sum(counts):,}".replace(",", "\u202f")
    note = f"{total} tokens of hinted rollouts by π(token without hint) / π(token with hint)."
    if bounds:
        note += " Dotted: the mask's bounds; grey tokens weigh less, or nothing."
    return Chart(title, svg, (), note)


def _bounds(config: Row) -> tuple[float, float] | None:
    """log10 of the mask's bounds, from the resolved run file; None where it has no mask."""
    strategy: Any = config.get("strategy")
    part = strategy.get("p2o", strategy) if isinstance(strategy, Mapping) else {}
    settings = part.get("distillation") if isinstance(part, Mapping) else None
    if not isinstance(settings, Mapping) or settings.get("ratio") != "masked":
        return None
    low = settings.get("low", Distillation.low)
    high = settings.get("high", Distillation.high)
    return math.log10(max(low, _LEAST_RATIO)), math.log10(high)


def solved_strip(order: Sequence[int], solved: Sequence[int]) -> Markup:
    """Dev questions as cells in this order, those that are solved filled."""
    wanted, side = set(solved), 8
    cells = "".join(
        f"M{i * side} 0h{side - 1}v12h-{side - 1}z"
        for i, place in enumerate(order)
        if place in wanted
    )
    width = max(1, len(order)) * side
    return Markup(
        '<svg class="strip" viewBox="0 0 {0} 12" role="img" style="width:{1}rem">'
        "<title>{2} of {3} solved</title>"
        '<path class="all" d="M0 0h{0}v12h-{0}z"/><path class="solved" d="{4}"/></svg>'
    ).format(width, round(width / 24, 2), len(wanted & set(order)), len(order), cells)
