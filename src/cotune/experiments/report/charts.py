"""Line charts: where everything stands in an SVG drawing, which the pages' template writes.

They are drawn here because matplotlib, with what it needs, would add 85 MB to an installation, and to a
report five seconds of imports and a quarter of a second a chart.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Point = tuple[float, float]

COLOURS = 8
"""Number of series colours in the style sheet (classes s0 to s7)."""
HALF = (450, 200)
"""The size of a chart of which two stand side by side."""
WIDE = (900, 280)
"""The size of one as wide as the page."""
_LONGEST = 500  # points of a curve; longer ones are thinned, so that pages stay small
_SMOOTHED_FROM = 20  # points
_DOTTED_BELOW = 8


@dataclass(frozen=True)
class Series:
    """One line."""

    name: str
    points: Sequence[Point]
    """(x, y), x ascending."""
    style: str
    """CSS class of its colour: "s0" … "s7", "muted"."""
    raw: Sequence[Point] = ()
    """Drawn faintly behind, such as the values that `points` averages."""

    @property
    def dots(self) -> Sequence[Point]:
        return self.points if len(self.points) < _DOTTED_BELOW else ()


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawing of lines over axes, those that lie behind first; its methods place points in it.

    Attributes:
        share: y is written as per cent.
        x_ticks, y_ticks: values; the y axis ends at its ticks.
        guides: (x, label) of dotted vertical lines.
        legend: (CSS class, name) of each series that its colour identifies.
    """

    title: str
    size: tuple[int, int]
    x_label: str
    share: bool
    x_range: Point
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    guides: Sequence[tuple[float, str]]
    series: Sequence[Series]
    legend: Sequence[tuple[str, str]]
    note: str
    left: int = 44
    top: int = 14

    @property
    def right(self) -> int:
        return self.size[0] - 12

    @property
    def bottom(self) -> int:
        return self.size[1] - 38

    def x(self, value: float) -> float:
        low, high = self.x_range
        share = (value - low) / ((high - low) or 1.0)
        return round(self.left + share * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        low = self.y_ticks[0]
        high = self.y_ticks[-1]
        return round(self.bottom - (value - low) / (high - low) * (self.bottom - self.top), 1)

    def path(self, points: Iterable[Point]) -> str:
        """Return points as SVG's list of coordinates."""
        return " ".join(f"{self.x(x)},{self.y(y)}" for x, y in points)

    def y_text(self, value: float) -> str:
        return f"{value * 100:g}\u2009%" if self.share else f"{value:g}"


def style(index: int) -> str:
    """Return the CSS class of the series at `index`."""
    return f"s{index % COLOURS}"


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Return round numbers that cover [low, high]: 1, 2 or 5 times a power of ten apart; 0 if the range has it."""
    span = high - low
    if span < max(1e-9 * max(abs(low), abs(high)), 1e-200):
        span = 1.0
    exponent = math.floor(math.log10(span / about))
    step = next(
        m * 10.0**exponent for m in (1, 2, 5, 10) if m * 10.0**exponent >= span / about * 0.999
    )
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(i * step, 2 - exponent) for i in range(first, max(last, first + 1) + 1)]


def thin(points: Sequence[Point]) -> list[Point]:
    """Return some of many points, evenly apart, the last one included."""
    apart = max(1, -(-len(points) // _LONGEST))
    return [point for i, point in enumerate(points) if (len(points) - 1 - i) % apart == 0]


def average(name: str, points: Sequence[Point], style: str) -> Series:
    """Return a line, a long one as its moving average."""
    if len(points) < _SMOOTHED_FROM:
        return Series(name, points, style)
    window = max(5, round(len(points) / 20))
    recent = (points[max(0, i + 1 - window) : i + 1] for i in range(len(points)))
    means = [(part[-1][0], math.fsum(y for _, y in part) / len(part)) for part in recent]
    return Series(name, thin(means), style, raw=thin(points))


def curves_chart(
    title: str,
    curves: Iterable[tuple[str, Sequence[Point]]],
    *,
    share: bool = False,
    guides: Sequence[tuple[float, str]] = (),
) -> Chart | None:
    """Draw named curves over the steps, long ones averaged; None if no curve has a point."""
    series = [average(name, points, style(i)) for i, (name, points) in enumerate(curves)]
    averaged = any(line.raw for line in series)
    note = "Faint: each step. Line: moving average." if averaged else ""
    return line_chart(title, series, share=share, note=note, guides=guides)


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    share: bool = False,
    x_label: str = "step",
    note: str = "",
    guides: Sequence[tuple[float, str]] = (),
    x_range: Point | None = None,
    y_top: float = 0.0,
    size: tuple[int, int] = HALF,
) -> Chart | None:
    """Draw lines over axes; the y axis includes 0, `y_top` and all points. None if no series has a point.

    Args:
        share: write y as per cent; the axis ends at 1 if it comes near.
        guides: (x, label) of dotted vertical lines.
        x_range: ends of an axis that several charts share; None takes them from the points.
    """
    series = [line for line in series if line.points]
    points = [point for line in series for point in (*line.points, *line.raw)]
    if not points:
        return None
    xs, ys = zip(*points, strict=True)
    x_low, x_high = x_range or (min(xs), max(xs))
    y_high = max(y_top, 0.0, *ys)
    if share and y_high > 0.8:
        y_high = max(y_high, 1.0)
    x_ticks = [tick for tick in ticks(x_low, x_high, 5) if x_low <= tick <= x_high]
    # A step is whole.
    whole = [tick for tick in x_ticks if tick == int(tick)]
    coloured = list(dict.fromkeys((s.style, s.name) for s in series if s.style != "muted"))
    return Chart(
        title=title,
        size=size,
        x_label=x_label,
        share=share,
        x_range=(x_low, x_high),
        x_ticks=x_ticks if x_high < 1 else whole,
        y_ticks=ticks(min(0.0, *ys), y_high),
        guides=guides,
        series=sorted(series, key=lambda s: s.style != "muted"),
        legend=coloured if len(coloured) > 1 else [],
        note=note,
    )
