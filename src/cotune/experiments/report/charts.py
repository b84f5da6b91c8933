"""Charts as inline SVG: lines, histograms, interval bars and strips; colours come from the page's CSS.

They are drawn here because a plotting library fixes colours, fonts and sizes in the drawing. These
follow the page's style sheet instead: light, dark, print and phone share one drawing.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from markupsafe import Markup

Point = tuple[float, float]
Unit = Literal["number", "share", "power"]
"""Number format of an axis: plain, per cent, or as an exponent of ten."""

COLOURS = 8
"""Number of series colours in the style sheet (classes s0 to s7)."""
MOST_POINTS = 500
"""Points of a curve beyond which it is thinned, so that pages stay small."""
_SMOOTHED_FROM, _DOTTED_BELOW = 20, 8  # points of a curve
_LABEL_ROOM, _LABEL_GAP = 34, 18


class Size(NamedTuple):
    """Size of a drawing, its margins, and about how many ticks its axes have."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    x_ticks: int
    y_ticks: int


LARGE = Size(640, 300, 52, 14, 12, 44, 6, 5)
PANEL = Size(300, 176, 40, 10, 8, 38, 4, 2)
"""Size of one of many small charts side by side."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line.

    Attributes:
        points: (x, y), x ascending.
        style: CSS class of its colour ("s0" … "s7", "muted").
        raw: points drawn faintly behind, such as the values that `points` averages.
        band: (x, lowest, highest), drawn as an area behind.
        dots: mark each point.
        label: drawn behind the last point.
        born, died: mark the first point as a birth, the last as a death.
    """

    name: str
    points: Sequence[Point]
    style: str
    raw: Sequence[Point] = ()
    band: Sequence[tuple[float, float, float]] = ()
    dots: bool = False
    label: str = ""
    born: bool = False
    died: bool = False
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing with its heading and legend.

    Attributes:
        legend: (CSS class, name) of each series that its colour identifies.
        note: how to read it.
    """

    title: str
    svg: Markup
    legend: tuple[tuple[str, str], ...] = ()
    note: str = ""


def style(index: int) -> str:
    """Return the CSS class of the series at `index`."""
    return f"s{index % COLOURS}"


def ticks(low: float, high: float, about: int = 5, least: float = 0.0) -> list[float]:
    """Return round numbers that cover [low, high]: 1, 2 or 5 times a power of ten apart.

    They are at least `least` apart: with 1, all are whole. Multiples of the step, they include 0 if
    the range does.
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


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Return at most `most` of the points, evenly apart, the last one included."""
    apart = max(1, -(-len(points) // most))
    return [point for i, point in enumerate(points) if (len(points) - 1 - i) % apart == 0]


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move label positions apart to at least `gap`, in their order, within [low, high].

    If there is no room for all, they keep the gap and run past `low`.
    """
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    placed = list(positions)
    floor, ceiling = low, high
    for i in order:
        placed[i] = max(placed[i], floor)
        floor = placed[i] + gap
    for i in reversed(order):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - gap
    return placed


def curves_chart(
    title: str, curves: Sequence[tuple[str, Sequence[Point]]], unit: Unit = "number"
) -> Chart | None:
    """Draw named curves over the steps, long ones averaged; None if no curve has a point."""
    series: list[Series] = []
    window = 0
    for i, (name, points) in enumerate(curves):
        if len(points) < _SMOOTHED_FROM:
            series.append(Series(name, points, style(i), dots=len(points) < _DOTTED_BELOW))
        else:
            window = max(5, round(len(points) / 20))
            averaged = thinned(moving_average(points, window))
            series.append(Series(name, averaged, style(i), raw=thinned(points)))
    note = f"Faint: each step. Line: mean of the last {window} steps." if window else ""
    return line_chart(title, series, unit=unit, note=note, legend=len(curves) > 1)


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    unit: Unit = "number",
    x_label: str = "step",
    note: str = "",
    legend: bool = True,
    guides: Iterable[float] = (),
    x_range: Point | None = None,
    y_range: Point | None = None,
    size: Size = LARGE,
) -> Chart | None:
    """Draw lines over axes; the y axis includes 0 and all points. None if no series has a point.

    Args:
        title: heading, and the name for screen readers.
        unit: unit of y.
        guides: x values of vertical guide lines.
        x_range, y_range: ends of axes that several charts share; None takes them from the points, whose
            x must then be whole numbers.
    """
    series = [s for s in series if s.points]
    everything = [p for s in series for p in (*s.points, *s.raw)]
    if not everything:
        return None
    if y_range is None:
        ys = [y for _, y in everything]
        y_range = (min(0.0, *ys), max(0.0, *ys))
        if unit == "share" and y_range[0] == 0.0 and y_range[1] > 0.8:
            y_range = (0.0, max(y_range[1], 1.0))
    least = 0.0
    if x_range is None:
        x_range, least = (min(x for x, _ in everything), max(x for x, _ in everything)), 1.0
    frame = _Frame(
        size,
        size.width - size.right - (_LABEL_ROOM if any(s.label for s in series) else 0),
        x_range,
        [t for t in ticks(*x_range, size.x_ticks, least) if x_range[0] <= t <= x_range[1]],
        ticks(*y_range, 7, 1.0) if unit == "power" else ticks(*y_range, size.y_ticks),
    )
    behind_first = sorted(series, key=lambda s: (s.style != "muted", s.strong))
    svg = _svg(
        title,
        size,
        *frame.axes(x_label, _whole, _WRITTEN[unit]),
        *map(frame.guide, guides),
        *map(frame.line, behind_first),
        *frame.labels(series),
    )
    return Chart(title, svg, tuple((s.style, s.name) for s in series) if legend else (), note)


def column_chart(
    title: str,
    counts: Sequence[int],
    low: float,
    high: float,
    bounds: tuple[float, float] | None = None,
) -> Markup:
    """Draw a histogram over powers of ten; the height of a column is log10 of its count.

    Args:
        title: the name for screen readers.
        counts: the first counts everything below `low`, the last everything from `high` on, the others
            bins of equal width between.
        low, high: exponents of ten.
        bounds: exponents between which columns have the first colour; the others are grey.

    Raises:
        ValueError: nothing is counted.
    """
    if sum(counts) <= 0:
        raise ValueError(f"chart {title!r} counts nothing; expected at least one")
    width = (high - low) / (len(counts) - 2)
    frame = _Frame(
        LARGE,
        LARGE.width - LARGE.right,
        (low - width, high + width),
        [t for t in ticks(low, high, 6, 1.0) if low <= t <= high],
        # The floor is below 10⁰, so that a count of 1 has a height.
        [-0.5, *ticks(0.0, math.log10(max(counts)), 6, 1.0)],
    )
    inside, base = bounds or (-math.inf, math.inf), LARGE.height - LARGE.bottom
    columns: list[Markup] = []
    for i, count in enumerate(counts):
        start, end = low + (i - 1) * width, low + i * width
        name = f"below {10**end:.3g}"
        if i > 0:
            name = f"from {10**start:.3g}" + (f" to {10**end:.3g}" if i < len(counts) - 1 else "")
        if count:
            left, right, top = frame.x(start) + 1, frame.x(end) - 1, frame.y(math.log10(count))
            outline = f"M{left:.1f} {base:.1f}V{top:.1f}H{right:.1f}V{base:.1f}z"
            bar = _tag("path", css="column", d=outline)
            css = "s0" if inside[0] <= start + width / 2 <= inside[1] else "muted"
            columns.append(_tag("g", _tag("title", f"{name}: {count}"), bar, css=css))
    return _svg(
        title,
        LARGE,
        *frame.axes("ratio", _power, lambda y: _power(y) if y >= 0 else "0"),
        *columns,
        *(frame.guide(x) for x in bounds or () if low <= x <= high),
    )


def interval_bar(
    value: float,
    interval: tuple[float, float] | None,
    parts: Iterable[float],
    *,
    between: tuple[float, float],
    style: str,
    guide: float | None = None,
) -> Markup:
    """Draw a value with its interval, the values that it is a mean of, and a dotted guide.

    Args:
        parts: short strokes below.
        between: ends of the scale.
        style: CSS class of the colour.
    """
    width, height, edge = 150, 22, 5

    def x(value: float) -> float:
        return edge + (value - between[0]) / (between[1] - between[0]) * (width - 2 * edge)

    def line(css: str, x1: float, x2: float, y1: float, y2: float) -> Markup:
        return _tag("line", css=css, x1=x(x1), x2=x(x2), y1=y1, y2=y2)

    middle = height / 2
    drawn = [line("track", *between, middle, middle)]
    if guide is not None:
        drawn.append(line("guide", guide, guide, 1, height - 1))
    if interval is not None:
        drawn.append(line("interval", *interval, middle, middle))
        drawn += [line("cap", end, end, middle - 4, middle + 4) for end in interval]
    drawn += [line("seed", part, part, height - 5, height) for part in parts]
    drawn.append(_tag("circle", css="dot", cx=x(value), cy=middle, r=3.8))
    box = f"0 0 {width} {height}"
    return _tag("svg", *drawn, css=f"bar {style}", viewBox=box, role="img", aria_hidden="true")


def solved_strip(order: Sequence[int], solved: Sequence[int]) -> Markup:
    """Draw questions as cells in this order, the solved ones filled."""
    wanted, side = set(solved), 8
    width = max(1, len(order)) * side
    cells = "".join(
        f"M{i * side} 0h{side - 1}v12h-{side - 1}z" for i, q in enumerate(order) if q in wanted
    )
    return _tag(
        "svg",
        _tag("title", f"{len(wanted & set(order))} of {len(order)} solved"),
        _tag("path", css="all", d=f"M0 0h{width}v12h-{width}z"),
        _tag("path", css="solved", d=cells),
        css="strip",
        viewBox=f"0 0 {width} 12",
        role="img",
        style=f"width:{round(width / 24, 2)}rem",
    )


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _power(exponent: float) -> str:
    return "10" + f"{exponent:g}".translate(_RAISED)


def _whole(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"


_WRITTEN: dict[Unit, Callable[[float], str]] = {
    "number": "{:g}".format,
    "share": lambda share: f"{share * 100:g}\u2009%",
    "power": _power,
}


def _tag(name: str, *content: str, css: str = "", **attributes: object) -> Markup:
    """Return an element, everything escaped; coordinates have one digit after the point."""
    attributes = {"class": css, **attributes} if css else attributes
    given = Markup("").join(
        Markup(' {}="{}"').format(
            key.replace("_", "-"), f"{value:.1f}" if isinstance(value, float) else value
        )
        for key, value in attributes.items()
    )
    if not content:
        return Markup("<{}{}/>").format(name, given)
    return Markup("<{0}{1}>{2}</{0}>").format(name, given, Markup("").join(content))


def _svg(title: str, size: Size, *parts: Markup) -> Markup:
    box = f"0 0 {size.width} {size.height}"
    lines = Markup("\n").join((_tag("title", title), *parts))
    return _tag("svg", lines, css="chart", viewBox=box, role="img")


@dataclass(frozen=True, slots=True)
class _Frame:
    """The plotting area of a chart and its scales; `right` is the x at which it ends."""

    size: Size
    right: float
    x_range: Point
    x_ticks: list[float]
    y_ticks: list[float]

    @property
    def base(self) -> int:
        return self.size.height - self.size.bottom

    def x(self, value: float) -> float:
        low, high = self.x_range
        left = self.size.left
        return left + (value - low) / ((high - low) or 1.0) * (self.right - left)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return self.base - (value - low) / (high - low) * (self.base - self.size.top)

    def axes(
        self, x_label: str, x_text: Callable[[float], str], y_text: Callable[[float], str]
    ) -> Iterable[Markup]:
        left, right, base = self.size.left, self.right, self.base
        for tick in self.y_ticks:
            y = self.y(tick)
            yield _tag("line", css="grid", x1=left, x2=right, y1=y, y2=y)
            yield _tag("text", y_text(tick), css="y", x=left - 6, y=y)
        for tick in self.x_ticks:
            yield _tag("text", x_text(tick), css="x", x=self.x(tick), y=base + 17)
        yield _tag("line", css="axis", x1=left, x2=right, y1=base, y2=base)
        yield _tag("text", x_label, css="x name", x=(left + right) / 2, y=self.size.height - 7)

    def guide(self, value: float) -> Markup:
        x = self.x(value)
        return _tag("line", css="guide", x1=x, x2=x, y1=self.size.top, y2=self.base)

    def line(self, series: Series) -> Markup:
        def outline(tag: str, css: str, points: Iterable[Point]) -> Markup:
            where = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
            return _tag(tag, css=css, points=where)

        def circle(css: str, point: Point) -> Markup:
            return _tag("circle", css=css, cx=self.x(point[0]), cy=self.y(point[1]), r=3.5)

        points, drawn = series.points, [_tag("title", series.name)]
        if series.band:
            upper = [(x, high) for x, _, high in series.band]
            lower = [(x, low) for x, low, _ in reversed(series.band)]
            drawn.append(outline("polygon", "band", upper + lower))
        if series.raw:
            drawn.append(outline("polyline", "raw", series.raw))
        drawn.append(outline("polyline", "strong" if series.strong else "line", points))
        if series.dots or len(points) == 1:
            drawn += [circle("dot", point) for point in points]
        if series.born:
            drawn.append(circle("birth", points[0]))
        if series.died:
            x, y = self.x(points[-1][0]), self.y(points[-1][1])
            drawn.append(_tag("path", css="death", d=f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"))
        return _tag("g", *drawn, css=series.style)

    def labels(self, series: Sequence[Series]) -> Iterable[Markup]:
        named = [s for s in series if s.label]
        wished = [self.y(s.points[-1][1]) for s in named]
        placed = spread(wished, _LABEL_GAP, self.size.top, self.base)
        for s, y in zip(named, placed, strict=True):
            yield _tag("text", s.label, css=f"end {s.style}", x=self.x(s.points[-1][0]) + 8, y=y)
