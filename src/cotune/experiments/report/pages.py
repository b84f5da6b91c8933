"""Pages of reports: numbers, times and names as text, cells of tables, and the templates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cotune.run.json_files import write_atomic

_THIN = "\u202f"
NONE = "–"
"""The text for a missing value."""

# Characters that a browser would not show or that would reorder the page: C0 and C1 controls and
# marks of writing direction. A line feed and a tab stay.
_PICTURES = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table.

    Attributes:
        note: a second text, small.
        css: class of the main text: "up" and "down" colour a change; of a heading, its colour.
        tag: a mark behind the main text.
    """

    text: str = NONE
    note: str = ""
    css: str = ""
    tag: str = ""
    bar: "Bar | None" = None


@dataclass(frozen=True, slots=True)
class Bar:
    """A score as a bar. All numbers are per cent of its width; `css` is the class of its colour."""

    score: float
    interval: Sequence[float]
    seeds: Sequence[float]
    guide: float | None
    css: str


@dataclass(frozen=True, slots=True)
class Scores:
    """Writes scores: shares of 1 as per cent, others with three digits."""

    shares: bool

    def score(self, value: float | None) -> str:
        return percent(value) if self.shares else number(value)

    def cell(
        self, value: float | None, interval: Sequence[float] | None = None, change: bool = False
    ) -> Cell:
        """Return a score with its interval; a change has a sign, and a colour if it excludes zero."""
        if value is None:
            return Cell()
        sign, scale, end = "+" if change else "", 100 if self.shares else 1, 0 if self.shares else 3
        between = "–" if self.shares and not change else " to "
        text = f"{value * scale:{sign}.{1 if self.shares else 3}f}"
        ends = [f"{edge * scale:{sign}.{end}f}" for edge in interval or ()]
        css = (
            ""
            if not change or not interval
            else "up" * (interval[0] > 0) or "down" * (interval[1] < 0)
        )
        unit = f"{_THIN}%" if self.shares and not change else ""
        return Cell(_minus(text) + unit, between.join(map(_minus, ends)), css)


def _minus(text: str) -> str:
    return text.replace("-", "−")


def percent(value: float | None) -> str:
    """Write a share as per cent; a dash for None."""
    return NONE if value is None else _minus(f"{value * 100:.1f}{_THIN}%")


def number(value: object) -> str:
    """Write a score or weight with three digits; a dash for None."""
    return _minus(f"{value:.3f}") if isinstance(value, (int, float)) else NONE


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


def write_page(folder: Path, template: str, content: Mapping[str, object]) -> Path:
    """Render a template of this package into a folder's report.html.

    Everything is escaped and an unknown name is an error. Control characters become pictures (␀, ␛).
    """
    # The style sheet is part of the package, not written by a model.
    css = Markup(files(__package__ or __name__).joinpath("report.css").read_text(encoding="utf-8"))
    html = environment().get_template(template).render(style=css, **content)
    path = folder / "report.html"
    write_atomic(path, html.translate(_PICTURES).encode(errors="replace"))
    return path


@cache
def environment() -> Environment:
    """Return the environment of the templates, which compiles each once per process."""
    templates = Environment(
        loader=PackageLoader(__package__ or __name__, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"percent": percent, "number": number, "count": count, "cut": cut}
    return templates
