"""Line charts: where everything stands in an SVG drawing, which the pages' template writes.

They are drawn here because matplotlib, with what it needs, would add 85 MB to an installation, and to a
report five seconds of imports and a quarter of a second a chart.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Point = tuple[float, float]
Size = tuple[int, int]

COLOURS = 8
"""Number of series colours in the style sheet (classes s0 to s7)."""
HALF, WIDE, PANEL = (450, 200), (900, 280), (280, 170)
"""Sizes: two side by side, the width of the page, one of many small ones."""
_MOST_POINTS = 500  # of a curve; longer ones are thinned, so that pages stay small
_SMOOTHED_FROM, _DOTTED_BELOW = 20, 8  # points of a curve


@dataclass(frozen=True, slots=True)
class Series:
    """One line.

    Attributes:
        points: (x, y), x ascending.
        style: CSS class of its colour ("s0" … "s7", "muted").
        raw: points drawn faintly behind, such as the values that `points` averages.
    """

    name: str
    points: Sequence[Point]
    style: str
    raw: Sequence[Point] = ()
    strong: bool = False

    @property
    def dots(self) -> Sequence[Point]:
        return self.points if len(self.points) < _DOTTED_BELOW else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing of lines over axes; its methods place points in it.

    Attributes:
        series: those that lie behind first.
        share: y is written as per cent.
        x_ticks, y_ticks: values; the y axis ends at its ticks.
        guides: x of dotted vertical lines.
        legend: (CSS class, name) of each series that its colour identifies.
        note: how to read it.
    """

    title: str
    size: Size
    x_label: str
    share: bool
    x_range: Point
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    guides: Sequence[float]
    series: Sequence[Series]
    legend: Sequence[tuple[str, str]]
    note: str
    left: int = 44
    top: int = 8

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
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return round(self.bottom - (value - low) / (high - low) * (self.bottom - self.top), 1)

    def path(self, points: Iterable[Point]) -> str:
        """Return points as SVG's list of coordinates."""
        return " ".join(f"{self.x(x)},{self.y(y)}" for x, y in points)

    def x_text(self, value: float) -> str:
        return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"

    def y_text(self, value: float) -> str:
        return f"{value * 100:g}\u2009%" if self.share else f"{value:g}"


def style(index: int) -> str:
    """Return the CSS class of the series at `index`."""
    return f"s{index % COLOURS}"


def ticks(low: float, high: float, about: int = 4, least: float = 0.0) -> list[float]:
    """Return round numbers that cover [low, high]: 1, 2 or 5 times a power of ten apart.

    They are at least `least` apart: with 1, all are whole. If the range has 0, so do they.
    """
    span = high - low
    if span < max(1e-9 * max(abs(low), abs(high)), 1e-200):
        span = 1.0
    rough = max(span / about, least)
    exponent = math.floor(math.log10(rough))
    step = next(m * 10.0**exponent for m in (1, 2, 5, 10) if m * 10.0**exponent >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 2 - exponent) for i in range(first, max(last, first + 1) + 1)]


def moving_average(points: Sequence[Point], window: int) -> list[Point]:
    """Return at each point the mean of the last `window` values (fewer at the start)."""
    values = [y for _, y in points]
    recent = (values[max(0, i + 1 - window) : i + 1] for i in range(len(points)))
    return [(x, math.fsum(ys) / len(ys)) for (x, _), ys in zip(points, recent, strict=True)]


def thinned(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """Return at most `most` of the points, evenly apart, the last one included."""
    apart = max(1, -(-len(points) // most))
    return [point for i, point in enumerate(points) if (len(points) - 1 - i) % apart == 0]


def curves_chart(
    title: str, curves: Sequence[tuple[str, Sequence[Point]]], *, share: bool = False
) -> Chart | None:
    """Draw named curves over the steps, long ones averaged; None if no curve has a point."""
    series: list[Series] = []
    window = 0
    for i, (name, points) in enumerate(curves):
        if len(points) < _SMOOTHED_FROM:
            series.append(Series(name, points, style(i)))
        else:
            window = max(5, round(len(points) / 20))
            averaged = thinned(moving_average(points, window))
            series.append(Series(name, averaged, style(i), raw=thinned(points)))
    note = f"Faint: each step. Line: mean of the last {window} steps." if window else ""
    return line_chart(title, series, share=share, note=note)


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    share: bool = False,
    x_label: str = "step",
    note: str = "",
    guides: Iterable[float] = (),
    x_range: Point | None = None,
    y_range: Point | None = None,
    size: Size = HALF,
) -> Chart | None:
    """Draw lines over axes; the y axis includes 0 and all points. None if no series has a point.

    Args:
        share: write y as per cent.
        guides: x of dotted vertical lines.
        x_range, y_range: ends of axes that several charts share; None takes them from the points, whose
            x must then be whole numbers.
    """
    series = [s for s in series if s.points]
    drawn = [point for s in series for point in (*s.points, *s.raw)]
    if not drawn:
        return None
    xs, ys = zip(*drawn, strict=True)
    x_low, x_high = x_range or (min(xs), max(xs))
    y_low, y_high = y_range or (min(0.0, *ys), max(0.0, *ys))
    if share and y_high > 0.8:
        y_high = max(y_high, 1.0)
    coloured = list(dict.fromkeys((s.style, s.name) for s in series if s.style != "muted"))
    return Chart(
        title=title,
        size=size,
        x_label=x_label,
        share=share,
        x_range=(x_low, x_high),
        x_ticks=[
            tick
            for tick in ticks(x_low, x_high, 5, 0.0 if x_range else 1.0)
            if x_low <= tick <= x_high
        ],
        y_ticks=ticks(y_low, y_high),
        guides=list(guides),
        series=sorted(series, key=lambda s: (s.style != "muted", s.strong)),
        legend=coloured if len(coloured) > 1 else [],
        note=note,
    )
