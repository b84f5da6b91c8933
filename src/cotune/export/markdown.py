"""Text of others in Markdown: it can neither end its block nor become a tag, a link or a heading."""

import re

from cotune.utils.text import printable

_RUNS = re.compile(r"`+")
_SAFE = frozenset(" /,-")


def inline(text: str) -> str:
    """Text for a line or a table's cell; what could be syntax becomes a character reference."""
    line = " ".join(printable(" ".join(text.split())).split())
    dotted = _SAFE if "www." in line.lower() else _SAFE | {"."}
    return "".join(c if c.isalnum() or c in dotted else f"&#{ord(c)};" for c in line)


def fenced(text: str, language: str = "text") -> str:
    """A code block around a text, its fence longer than any run of backticks in it.

    Control characters and marks that turn a line's direction are left out.
    """
    shown = printable(text.replace("\r\n", "\n").replace("\r", "\n"))
    longest = max((len(run) for run in _RUNS.findall(shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{shown}\n{fence}"


def table(rows: list[list[str]]) -> str:
    """A table of cells that are Markdown already: the header first, all but the first to the right."""
    head, *body = rows
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))
