"""Pages of reports: format numbers, times and names, and render templates."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cotune.experiments.report.charts import solved_strip
from cotune.run.json_files import write_atomic

_THIN = "\u202f"
NONE = "–"
"""The text for a missing value."""


def _writer(form: str, scale: float = 1.0) -> Callable[[float | None], str]:
    """Return a function that writes a number in this form; a dash for None."""
    return lambda value: NONE if value is None else form.format(value * scale).replace("-", "−")


def _range_writer(form: str, between: str, scale: int = 1) -> Callable[[Sequence[float]], str]:
    """Return a function that writes the ends of an interval in this form."""
    return lambda ends: between.join(form.format(end * scale).replace("-", "−") for end in ends)


percent = _writer(f"{{:.1f}}{_THIN}%", 100)
short_percent = _writer("{:.1f}", 100)
points = _writer("{:+.1f}", 100)
"""Write a difference of shares in percentage points, signed."""
signed = _writer("{:+.3f}")
chance = _writer("{:.2f}")


def number(value: object) -> str:
    """Write a score or weight with three digits; a dash for None."""
    return f"{value:.3f}" if isinstance(value, (int, float)) else NONE


def direction(ends: Sequence[float] | None) -> str:
    """Return the CSS class of a difference whose interval excludes zero; "" for others."""
    if ends is None:
        return ""
    return "up" if ends[0] > 0 else "down" if ends[1] < 0 else ""


def count(value: float | None) -> str:
    """Write a whole number, its thousands separated."""
    return NONE if value is None else f"{value:,.0f}".replace(",", _THIN)


def money(value: float | None) -> str:
    """Write US dollars: to the cent, below ten cents to four digits."""
    if value is None:
        return NONE
    return f"${value:,.4f}" if 0 < value < 0.1 else f"${value:,.2f}"


def duration(seconds: float | None) -> str:
    """Write seconds as "42 s", "3 min 12 s" or "5 h 07 min"."""
    if seconds is None:
        return NONE
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def moment(seconds: float) -> str:
    """Write Unix time as a UTC date and minute."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def cut(text: object, most: int = 2000) -> str:
    """Return the start of a long text and how many characters are left out; a page stays small."""
    whole = "" if text is None else str(text)
    left = len(whole) - most
    return f"{whole[:most]} … {count(left)} more characters" if left > 0 else whole


def label(value: object) -> str:
    """Return a short name for a part of a run file: a plain value, or a section's own name."""
    if isinstance(value, Mapping):
        names = ("kind", "type", "name", "path", "id")
        return next((str(value[name]) for name in names if value.get(name)), "")
    return "" if value is None else str(value)


_FILTERS = {
    "percent": percent, "points": points, "number": number, "chance": chance, "count": count,
    "money": money, "duration": duration, "direction": direction, "solved_strip": solved_strip,
    "cut": cut,
}  # fmt: skip
_BY_UNIT = {
    "score": (percent, number),
    "short": (short_percent, number),
    "change": (points, signed),
    "interval": (_range_writer("{:.0f}", "–", 100), _range_writer("{:.3f}", " to ")),
    "change_interval": (_range_writer("{:+.0f}", " to ", 100), _range_writer("{:+.3f}", " to ")),
}
"""Filters for scores: of shares, and of other numbers."""

# Characters that a browser would not show or that would reorder the page: C0 and C1 controls and
# marks of writing direction. A line feed and a tab stay.
_PICTURES = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}


def write_page(
    folder: Path,
    template: str,
    sheets: Sequence[str],
    shares: bool,
    content: Mapping[str, object],
) -> Path:
    """Render a template of this package into a folder's report.html.

    Everything is escaped and an unknown name is an error. Control characters become pictures (␀, ␛).

    Args:
        sheets: names of the style sheets to include.
        shares: scores are shares of 1, written as per cent.
        content: the variables of the template.
    """
    package = files(__package__ or __name__)
    # The style sheets are part of the package, not written by a model.
    css = Markup("".join(package.joinpath(name).read_text(encoding="utf-8") for name in sheets))
    html = _environment(shares).get_template(template).render(style=css, **content)
    path = folder / "report.html"
    write_atomic(path, html.translate(_PICTURES).encode(errors="replace"))
    return path


@cache
def _environment(shares: bool) -> Environment:
    """Return the environment of the templates, which compiles each once per process."""
    environment = Environment(
        loader=PackageLoader(__package__ or __name__, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= _FILTERS | {name: both[not shares] for name, both in _BY_UNIT.items()}
    return environment
