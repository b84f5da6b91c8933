"""The drawings of a suite's report as inline SVG; colours come from the page's style sheets."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from cotune.experiments.compare.suite_summary import SuiteMethod, SuiteSummary
from cotune.experiments.report.charts import Point, ticks
from cotune.experiments.report.suite_curves import Axis, Curve, Measure, MethodCurves

_STYLES = {
    "inference": "s5",
    "trained": "s0",
    "prompt": "s4",
    "staged": "s3",
    "ours": "s1",
    "ablation": "s2",
}
_BAR, _BAR_HEIGHT, _BAR_EDGE = 150, 22, 5
_WIDTH, _HEIGHT = 300, 176
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 10, 8, 38
MEASURES: Mapping[Measure, str] = {
    "validation": "validation score",
    "reward": "training reward",
}
_UNITS = ((3600 * 3, 3600.0, "hours"), (60 * 3, 60.0, "minutes"), (0, 1.0, "seconds"))


def group_style(group: str) -> str:
    """CSS class of a group's colour."""
    return _STYLES.get(group, "s7")


@dataclass(frozen=True, slots=True)
class Panel:
    """One method's curve against the baseline's.

    Attributes:
        title: the method.
        style: CSS class of its colour.
        svg: the drawing.
        note: says that its curve is of the training reward, where others' are not; "" else.
    """

    title: str
    style: str
    svg: Markup
    note: str


@dataclass(frozen=True, slots=True)
class Panels:
    """Small multiples over one axis: heading, and one panel a method, all on the same scales."""

    title: str
    panels: list[Panel]


class Bars:
    """The interval bars of one table: all on one scale.

    Args:
        suite: whose scores.
    """

    def __init__(self, suite: SuiteSummary) -> None:
        values = [v for m in suite.methods for v in (m.score, *(m.interval or ())) if v is not None]
        values += [v for m in suite.methods for v in m.by_seed.values() if v is not None]
        self._low = min(0.0, *values) if values else 0.0
        highest = max(values, default=1.0)
        self._high = max(1.0, highest) if suite.shares else max(highest, self._low + 1e-9)
        baseline = suite.baseline_method
        self._baseline = baseline.score if baseline else None

    def _x(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return _BAR_EDGE + share * (_BAR - 2 * _BAR_EDGE)

    def of(self, method: SuiteMethod) -> Markup:
        """Score with its interval, each seed's score faint, the baseline's dotted; "" without."""
        if method.score is None:
            return Markup("")
        middle = _BAR_HEIGHT / 2
        line = Markup('<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>')
        parts = [line.format("track", self._x(self._low), self._x(self._high), middle, middle)]
        if self._baseline is not None:
            x = self._x(self._baseline)
            parts.append(line.format("guide", x, x, 1, _BAR_HEIGHT - 1))
        if method.interval:
            low, high = map(self._x, method.interval)
            parts.append(line.format("interval", low, high, middle, middle))
            parts += [line.format("cap", x, x, middle - 4, middle + 4) for x in (low, high)]
        seeds = [self._x(value) for value in method.by_seed.values() if value is not None]
        parts += [line.format("seed", x, x, _BAR_HEIGHT - 5, _BAR_HEIGHT) for x in seeds]
        dot = Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="3.8"/>')
        parts.append(dot.format(self._x(method.score), middle))
        return Markup(
            '<svg class="bar {}" viewBox="0 0 {} {}" role="img" aria-hidden="true">{}</svg>'
        ).format(group_style(method.group), _BAR, _BAR_HEIGHT, Markup("").join(parts))


def panels(suite: SuiteSummary, read: dict[str, MethodCurves], axis: Axis) -> Panels | None:
    """A panel for each method that has a curve; None where none has."""
    drawn: list[tuple[SuiteMethod, Measure, Curve, Curve | None]] = []
    for _, _, methods in suite.grouped:
        for method in methods:
            measure = read[method.name].measure
            curve = read[method.name].curves.get((measure, axis))
            baseline = read.get(suite.baseline) if method.name != suite.baseline else None
            if curve is not None:
                other = baseline.curves.get((measure, axis)) if baseline else None
                drawn.append((method, measure, curve, other))
    if not drawn:
        return None
    unit, frame = _frame(suite, axis, [c for _, _, *both in drawn for c in both if c is not None])
    several = len({measure for _, measure, _, _ in drawn}) > 1
    found: list[Panel] = []
    for method, measure, curve, other in drawn:
        told, style = MEASURES[measure], group_style(method.group)
        svg = frame.draw(f"{method.title}: {told} by {unit}", style, curve, other)
        found.append(
            Panel(method.title, style, svg, told if several and measure == "reward" else "")
        )
    title = "By policy rollouts" if axis == "rollouts" else "By wall time"
    return Panels(title, found)


def _frame(suite: SuiteSummary, axis: Axis, curves: Sequence[Curve]) -> "tuple[str, _Frame]":
    """What x counts, and scales that hold all curves."""
    longest = max(curve.mean[-1][0] for curve in curves)
    divisor, unit = 1.0, "policy rollouts"
    if axis == "seconds":
        divisor, unit = next((each, name) for least, each, name in _UNITS if longest >= least)
    ys = [y for curve in curves for _, *ends in curve.band for y in ends]
    low, high = min(0.0, *ys), max(1.0 if suite.shares else 0.0, *ys)
    return unit, _Frame(longest / divisor, divisor, low, high, unit, suite.shares)


class _Frame:
    """The scales that all panels of one axis share."""

    def __init__(
        self, x_high: float, divisor: float, y_low: float, y_high: float, unit: str, percent: bool
    ) -> None:
        self._divisor, self._unit, self._percent = divisor, unit, percent
        self._x_high = x_high or 1.0
        self._x_ticks = [tick for tick in ticks(0.0, self._x_high, 4) if tick <= self._x_high]
        self._y_ticks = ticks(y_low, y_high, 2)

    def _x(self, value: float) -> float:
        return _LEFT + value / self._x_high * (_WIDTH - _LEFT - _RIGHT)

    def _y(self, value: float) -> float:
        low, high = self._y_ticks[0], self._y_ticks[-1]
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _BOTTOM - _TOP)

    def draw(self, title: str, style: str, curve: Curve, other: Curve | None) -> Markup:
        """The panel: another curve in grey behind, the seeds' range as a band, the mean."""
        parts = [
            Markup('<svg class="chart" viewBox="0 0 {} {}" role="img">').format(_WIDTH, _HEIGHT),
            Markup("<title>{}</title>").format(title),
            *self._axes(),
        ]
        guide = Markup('<line class="guide" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>')
        parts += [
            guide.format(self._x(x / self._divisor), _TOP, _HEIGHT - _BOTTOM) for x in curve.stages
        ]
        if other is not None:
            parts.append(self._group("muted", self._mean(other.mean)))
        band = self._band(curve.band) if curve.seeds > 1 else Markup("")
        parts += [self._group(style, band + self._mean(curve.mean)), Markup("</svg>")]
        return Markup("\n").join(parts)

    def _axes(self) -> Iterable[Markup]:
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        told: Callable[[float], str] = (
            (lambda v: f"{v * 100:g}\u2009%") if self._percent else "{:g}".format
        )
        for tick in self._y_ticks:
            y = self._y(tick)
            yield Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                _LEFT, right, y, y
            )
            yield Markup('<text class="y" x="{}" y="{:.1f}">{}</text>').format(
                _LEFT - 5, y, told(tick)
            )
        for tick in self._x_ticks:
            yield Markup('<text class="x" x="{:.1f}" y="{}">{}</text>').format(
                self._x(tick), bottom + 15, f"{tick / 1000:g}k" if tick >= 1000 else f"{tick:g}"
            )
        yield Markup('<text class="x name" x="{:.1f}" y="{}">{}</text>').format(
            (_LEFT + right) / 2, _HEIGHT - 6, self._unit
        )

    def _group(self, style: str, content: Markup) -> Markup:
        return Markup('<g class="{}">{}</g>').format(style, content)

    def _place(self, points: Iterable[Point]) -> str:
        return " ".join(f"{self._x(x / self._divisor):.1f},{self._y(y):.1f}" for x, y in points)

    def _mean(self, points: Sequence[Point]) -> Markup:
        if len(points) == 1:
            x, y = points[0]
            return Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="3"/>').format(
                self._x(x / self._divisor), self._y(y)
            )
        return Markup('<polyline class="line" points="{}"/>').format(self._place(points))

    def _band(self, band: Sequence[tuple[float, float, float]]) -> Markup:
        around = [(x, high) for x, _, high in band] + [(x, low) for x, low, _ in reversed(band)]
        return Markup('<polygon class="band" points="{}"/>').format(self._place(around))
