"""Tables on the console."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text


def plain_table(
    title: str | Text, left: Iterable[str | Text], right: Iterable[str | Text]
) -> Table:
    """Return a table without a frame, with left-aligned columns and then right-aligned ones."""
    table = Table(title=title or None, title_justify="left", show_edge=False, pad_edge=False)
    for column in left:
        table.add_column(column)
    for column in right:
        table.add_column(column, justify="right")
    return table
