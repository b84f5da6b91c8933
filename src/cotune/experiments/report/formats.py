"""How a report writes numbers, times and names."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

_THIN = "\u202f"
NONE = "–"
"""What stands where there is no value."""


def percent(value: float | None) -> str:
    """A share as per cent with one digit."""
    return NONE if value is None else f"{value * 100:.1f}{_THIN}%"


def points(value: float | None) -> str:
    """A difference of shares in percentage points, signed."""
    return NONE if value is None else f"{value * 100:+.1f}".replace("-", "−")


def signed(value: float | None) -> str:
    """A difference with three digits, signed."""
    return NONE if value is None else f"{value:+.3f}".replace("-", "−")


def share_range(ends: Sequence[float]) -> str:
    """An interval of shares in whole per cent."""
    return f"{ends[0] * 100:.0f}–{ends[1] * 100:.0f}"


def number_range(ends: Sequence[float]) -> str:
    """An interval with three digits."""
    return " to ".join(f"{end:.3f}".replace("-", "−") for end in ends)


def count(value: float | None) -> str:
    """A whole number, its thousands set apart."""
    return NONE if value is None else f"{value:,.0f}".replace(",", _THIN)


def money(value: float | None) -> str:
    """US dollars: to the cent, to four digits below ten cents."""
    if value is None:
        return NONE
    return f"${value:,.4f}" if 0 < value < 0.1 else f"${value:,.2f}"


def duration(seconds: float | None) -> str:
    """Seconds as "42 s", "3 min 12 s" or "5 h 07 min"."""
    if seconds is None:
        return NONE
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def number(value: object) -> str:
    """A score or weight with three digits; a dash for None."""
    return f"{value:.3f}" if isinstance(value, (int, float)) else NONE


def moment(seconds: float) -> str:
    """Unix time as a UTC date and minute."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def label(value: object) -> str:
    """A short name of a part of a run file: a plain value, or what a section calls itself."""
    if isinstance(value, Mapping):
        names = ("kind", "type", "name", "path", "id")
        return next((str(value[name]) for name in names if value.get(name)), "")
    return "" if value is None else str(value)


# Characters that a browser would not show, or would reorder the page by: C0 and C1 controls, and
# marks of writing direction. A line feed and a tab are what they seem.
_PICTURES = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}


def readable(text: str) -> str:
    """The same with pictures (␀, ␛, …) in place of characters that a page cannot show as such."""
    return text.translate(_PICTURES)
