"""Line charts as inline SVG: axes, ticks, an accessible title; colours come from the page's CSS."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

Point = tuple[float, float]

WIDTH, HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 12, 44
_LABEL_ROOM, _LABEL_GAP = 34, 18
COLOURS = 8
"""How many series colours the style sheet has (classes s0 to s7)."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line.

    Attributes:
        name: for the legend.
        points: (x, y), x ascending.
        style: CSS class of its colour ("s0" … "s7", "muted").
        raw: points drawn faintly behind, such as the values that `points` averages.
        dots: whether each point is marked.
        label: drawn behind the last point; "" for none.
        born: whether the first point is marked as a birth.
        died: whether the last point is marked as a death.
        strong: drawn thicker.
    """

    name: str
    points: Sequence[Point]
    style: str
    raw: Sequence[Point] = ()
    dots: bool = False
    label: str = ""
    born: bool = False
    died: bool = False
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart and what its legend says.

    Attributes:
        title: heading of the figure.
        svg: the drawing.
        legend: (CSS class, name) of each series that is told apart by colour.
        note: how to read it; "" for nothing.
    """

    title: str
    svg: Markup
    legend: tuple[tuple[str, str], ...] = ()
    note: str = ""


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) that cover [low, high]."""
    span = high - low
    if span < max(1e-9 * max(abs(low), abs(high)), 1e-200):
        span = 1.0
    rough = span / about
    exponent = math.floor(math.log10(rough))
    power = 10.0**exponent
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 2 - exponent) for i in range(first, max(last, first + 1) + 1)]


def whole_ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Whole numbers, evenly apart, 0 among them where it lies between, that cover [low, high]."""
    apart = max(1, math.ceil((high - low) / about))
    first, last = math.floor(low / apart), math.ceil(high / apart)
    return [float(i * apart) for i in range(first, max(last, first + 1) + 1)]


def moving_average(points: Sequence[Point], window: int) -> list[Point]:
    """The mean of the last `window` values (fewer at the start) at each point."""
    values = [y for _, y in points]
    means: list[Point] = []
    for i, (x, _) in enumerate(points):
        recent = values[max(0, i + 1 - window) : i + 1]
        means.append((x, math.fsum(recent) / len(recent)))
    return means


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Moves label positions apart to at least `gap`, in their order, within [low, high].

    Where there is no room for all, they keep the gap and run past `low`.
    """
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    placed = list(positions)
    floor = low
    for i in order:
        placed[i] = max(placed[i], floor)
        floor = placed[i] + gap
    ceiling = high
    for i in reversed(order):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - gap
    return placed


@dataclass(frozen=True, slots=True)
class _Frame:
    """The plotting area and its scales."""

    x_ticks: list[float]
    y_ticks: list[float]
    right: float
    x_low: float
    x_high: float

    def x(self, value: float) -> float:
        span = (self.x_high - self.x_low) or 1.0
        return _LEFT + (value - self.x_low) / span * (self.right - _LEFT)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _BOTTOM - _TOP)


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str = "step",
    percent: bool = False,
    powers: bool = False,
    guides: Iterable[float] = (),
) -> Markup:
    """The SVG of a chart; the y axis holds 0 and all points, as per cent if `percent`.

    Args:
        title: what a screen reader says.
        series: at least one of them with a point.
        x_label: what x counts.
        percent: whether y is a share of 1.
        powers: whether y is the exponent of a power of ten.
        guides: x values of vertical guide lines.

    Raises:
        ValueError: there is no point to draw.
    """
    everything = [p for s in series for p in (*s.points, *s.raw)]
    if not everything:
        raise ValueError(f"chart {title!r} has no points; expected at least one")
    xs, ys = [x for x, _ in everything], [y for _, y in everything]
    low, high = min(0.0, *ys), max(0.0, *ys)
    if percent and low == 0.0 and high > 0.8:
        high = max(high, 1.0)
    right = WIDTH - _RIGHT - (_LABEL_ROOM if any(s.label for s in series) else 0)
    x_ticks = [t for t in ticks(min(xs), max(xs), 6) if min(xs) <= t <= max(xs) and t == int(t)]
    y_ticks = whole_ticks(low, high) if powers else ticks(low, high)
    frame = _Frame(x_ticks, y_ticks, right, min(xs), max(xs))
    parts = [
        Markup('<svg class="chart" viewBox="0 0 {} {}" role="img">').format(WIDTH, HEIGHT),
        Markup("<title>{}</title>").format(title),
        *_axes(frame, x_label, _power if powers else _percent if percent else "{:g}".format),
        *(_guide(frame, x) for x in guides),
        *(_line(frame, s) for s in sorted(series, key=lambda s: (s.style != "muted", s.strong))),
        *_labels(frame, series),
        Markup("</svg>"),
    ]
    return Markup("\n").join(parts)


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _power(exponent: float) -> str:
    return "10" + f"{exponent:g}".translate(_RAISED)


def _percent(share: float) -> str:
    return f"{share * 100:g}\u2009%"


def _axes(
    frame: _Frame,
    x_label: str,
    told: Callable[[float], str],
    told_x: Callable[[float], str] = "{:g}".format,
) -> Iterable[Markup]:
    bottom = HEIGHT - _BOTTOM
    for tick in frame.y_ticks:
        y = frame.y(tick)
        yield Markup('<line class="grid" x1="{}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>').format(
            _LEFT, frame.right, y, y
        )
        yield Markup('<text class="y" x="{}" y="{:.1f}">{}</text>').format(_LEFT - 7, y, told(tick))
    for tick in frame.x_ticks:
        yield Markup('<text class="x" x="{:.1f}" y="{}">{}</text>').format(
            frame.x(tick), bottom + 17, told_x(tick)
        )
    yield Markup('<line class="axis" x1="{}" x2="{:.1f}" y1="{}" y2="{}"/>').format(
        _LEFT, frame.right, bottom, bottom
    )
    yield Markup('<text class="x name" x="{:.1f}" y="{}">{}</text>').format(
        (_LEFT + frame.right) / 2, HEIGHT - 7, x_label
    )


def _guide(frame: _Frame, x: float) -> Markup:
    return Markup('<line class="guide" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>').format(
        frame.x(x), _TOP, HEIGHT - _BOTTOM
    )


def _path(frame: _Frame, points: Sequence[Point], css: str) -> Markup:
    where = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in points)
    return Markup('<polyline class="{}" points="{}"/>').format(css, where)


def _line(frame: _Frame, series: Series) -> Markup:
    if not series.points:
        return Markup("")
    parts = [_path(frame, series.raw, "raw")] if series.raw else []
    parts.append(_path(frame, series.points, "strong" if series.strong else "line"))
    marked = list(series.points) if series.dots or len(series.points) == 1 else []
    dot = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}"/>')
    parts += [dot.format("dot", frame.x(x), frame.y(y), 3.5) for x, y in marked]
    if series.born:
        x, y = series.points[0]
        parts.append(dot.format("birth", frame.x(x), frame.y(y), 3.5))
    if series.died:
        x, y = (f(v) for f, v in zip((frame.x, frame.y), series.points[-1], strict=True))
        cross = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
        parts.append(Markup('<path class="death" d="{}"/>').format(cross))
    return Markup('<g class="{}"><title>{}</title>{}</g>').format(
        series.style, series.name, Markup("").join(parts)
    )


def _labels(frame: _Frame, series: Sequence[Series]) -> Iterable[Markup]:
    named = [s for s in series if s.label and s.points]
    wished = [frame.y(s.points[-1][1]) for s in named]
    for s, y in zip(named, spread(wished, _LABEL_GAP, _TOP, HEIGHT - _BOTTOM), strict=True):
        yield Markup('<text class="end {}" x="{:.1f}" y="{:.1f}">{}</text>').format(
            s.style, frame.x(s.points[-1][0]) + 8, y, s.label
        )


def column_chart(
    title: str,
    counts: Sequence[int],
    low: float,
    high: float,
    bounds: tuple[float, float] | None = None,
) -> Markup:
    """The SVG of a histogram over powers of ten; the height of a column is log10 of its count.

    Args:
        title: what a screen reader says.
        counts: the first is of all below `low`, the last of all from `high` on, the others of bins
            of equal width between.
        low, high: exponents of ten.
        bounds: exponents between which columns have the first colour; the others are grey.

    Raises:
        ValueError: nothing is counted.
    """
    if sum(counts) <= 0:
        raise ValueError(f"chart {title!r} counts nothing; expected at least one")
    width = (high - low) / (len(counts) - 2)
    # The floor is below 10⁰, so that a count of 1 has a height, too.
    y_ticks = [-0.5, *whole_ticks(0.0, math.log10(max(counts)))]
    x_ticks = whole_ticks(low, high)
    frame = _Frame(x_ticks, y_ticks, WIDTH - _RIGHT, low - width, high + width)
    shown = replace(frame, x_ticks=[t for t in x_ticks if low <= t <= high])
    base, inside = HEIGHT - _BOTTOM, bounds or (-math.inf, math.inf)
    parts = [
        Markup('<svg class="chart" viewBox="0 0 {} {}" role="img">').format(WIDTH, HEIGHT),
        Markup("<title>{}</title>").format(title),
        *_axes(shown, "ratio", lambda y: _power(y) if y >= 0 else "0", _power),
    ]
    for i, n in enumerate(counts):
        start = low + (i - 1) * width
        known = inside[0] <= start + width / 2 <= inside[1]
        if n:
            x, y = frame.x(start) + 1, frame.y(math.log10(n))
            parts.append(
                Markup(
                    '<g class="{}"><title>{}: {}</title>'
                    '<path class="column" d="M{:.1f} {:.1f}V{:.1f}H{:.1f}V{:.1f}z"/></g>'
                ).format(
                    "s0" if known else "muted",
                    _bin_name(i, len(counts), start, width),
                    n,
                    x,
                    base,
                    y,
                    frame.x(start + width) - 1,
                    base,
                )
            )
    parts += [_guide(frame, x) for x in bounds or () if low <= x <= high]
    return Markup("\n").join([*parts, Markup("</svg>")])


def _bin_name(i: int, count: int, start: float, width: float) -> str:
    if i == 0:
        return f"below {10 ** (start + width):.3g}"
    return f"from {10**start:.3g}" + ("" if i == count - 1 else f" to {10 ** (start + width):.3g}")
