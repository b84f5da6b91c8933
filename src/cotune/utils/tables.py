"""Tables, for the console and for pages: their cells, and scores, counts and times as text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table as ConsoleTable
from rich.text import Text

from cotune.utils.text import one_line

_THIN = "\u202f"
NONE = "–"
"""The text for a missing value."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table."""

    text: str = NONE
    note: str = ""
    """A second text, small."""
    css: str = ""
    """Class of the main text: "up" and "down" colour a change; of a heading, its colour."""
    tag: str = ""
    """A mark behind the main text."""
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
    """Writes scores: shares of 1 as per cent, others with three decimals."""

    shares: bool

    def score(self, value: float | None) -> str:
        return percent(value) if self.shares else number(value)

    def cell(
        self, value: float | None, interval: Sequence[float] | None = None, change: bool = False
    ) -> Cell:
        """Return a score with its interval; a change has a sign, and a colour if it excludes zero."""
        if value is None:
            return Cell()
        sign = "+" if change else ""
        scale = 100 if self.shares else 1
        end = 0 if self.shares else 3
        between = "–" if self.shares and not change else " to "
        text = f"{value * scale:{sign}.{1 if self.shares else 3}f}"
        ends = [f"{edge * scale:{sign}.{end}f}" for edge in interval or ()]
        css = ""
        if change and interval:
            css = "up" * (interval[0] > 0) or "down" * (interval[1] < 0)
        unit = f"{_THIN}%" if self.shares and not change else ""
        return Cell(_minus(text) + unit, between.join(map(_minus, ends)), css)


def _minus(text: str) -> str:
    return text.replace("-", "−")


def percent(value: float | None) -> str:
    """Write a share as per cent; a dash for None."""
    return NONE if value is None else _minus(f"{value * 100:.1f}{_THIN}%")


def number(value: object) -> str:
    """Write a score or weight with three decimals; a dash for None."""
    return _minus(f"{value:.3f}") if isinstance(value, (int, float)) else NONE


def count(value: float | None) -> str:
    """Write a whole number, its thousands separated."""
    return NONE if value is None else f"{value:,.0f}".replace(",", _THIN)


def money(value: float | None) -> str:
    """Write US dollars: to the cent, below ten cents to four decimals."""
    if value is None:
        return NONE
    return f"${value:,.4f}" if 0 < value < 0.1 else f"${value:,.2f}"


def duration(seconds: float | None) -> str:
    """Write seconds as "42 s", "3 min 12 s" or "5 h 07 min"."""
    if seconds is None:
        return NONE
    total_seconds = round(seconds)
    if total_seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{total_seconds} s"
    if total_seconds < 3600:
        return f"{total_seconds // 60} min {total_seconds % 60:02d} s"
    return f"{total_seconds // 3600} h {total_seconds % 3600 // 60:02d} min"


@dataclass(frozen=True, slots=True)
class Table:
    """A table."""

    head: Sequence[Cell]
    """What it shows, then the headings of its columns."""
    rows: Sequence[Sequence[Cell]]
    """Each begins with its name; one with nothing else is a heading."""
    notes: str = ""
    """What a reader must know of its numbers, below it."""


def on_console(table: Table) -> ConsoleTable:
    """Return a table as the console shows it, without bars; nothing in its texts is markup."""

    def heading(cell: Cell) -> Text:
        return Text("\n".join(map(one_line, filter(None, (cell.text, cell.note)))))

    def written(cell: Cell) -> Text:
        first, *below = map(one_line, cell.note.splitlines() or [""])
        note = f" ({first})" if first and cell.text else first
        return Text("\n".join([one_line(cell.text) + note, *below]))

    corner, *heads = table.head
    console_table = plain_table(Text(one_line(corner.text)), [""], map(heading, heads))
    indent = "  " * any(len(row) == 1 for row in table.rows)
    for name, *cells in table.rows:
        label = Text(
            f"{indent if cells else ''}{one_line(name.text)}", style="" if cells else "bold"
        )
        if name.tag:
            label.append(f" ({one_line(name.tag)})", style="yellow")
        console_table.add_row(label, *map(written, cells))
    return console_table


def plain_table(
    title: str | Text, left: Iterable[str | Text], right: Iterable[str | Text]
) -> ConsoleTable:
    """Return a table without a frame, with left-aligned columns and then right-aligned ones."""
    table = ConsoleTable(title=title or None, title_justify="left", show_edge=False, pad_edge=False)
    for column in left:
        table.add_column(column, overflow="fold")
    for column in right:
        table.add_column(column, justify="right", overflow="fold")
    return table
