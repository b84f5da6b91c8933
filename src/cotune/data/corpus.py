"""Passages of a corpus: read from Search-R1's JSONL format, and written out for the policy."""

from pathlib import Path
from typing import Literal

from cotune.data.cells import list_names, plain_text
from cotune.data.rows import json_lines
from cotune.errors import ConfigError
from cotune.utils.text import encodable, shorten

Language = Literal[
    "english", "danish", "dutch", "french", "german", "italian", "norwegian", "portuguese", "russian",
    "spanish", "swedish", "turkish", "none",
]  # fmt: skip
"""Languages that BM25 stems and has stop words of; "none" is neither."""


def split_contents(contents: str) -> tuple[str, str]:
    """Return the title, without its quotes, and the text; contents of one line have the title ""."""
    title, newline, text = contents.partition("\n")
    return (title.strip().strip('"').strip(), text.strip()) if newline else ("", title.strip())


def format_passage(contents: str, protocol: str) -> str:
    """Return a passage as a policy reads it, before it is numbered: `(Title: "Oslo") …`.

    Under the protocol "search-r1" it is as Search-R1's `_passages2string` writes it: the first line is
    the title with its quotes, the rest follows unchanged.
    """
    if protocol == "search-r1":
        title, _, text = contents.partition("\n")
        return f"(Title: {title}) {text}"
    title, text = split_contents(contents)
    return f'(Title: "{title}") {text}' if title else text


def join_for_index(title: str, text: str, title_weight: int) -> str:
    """Return the text that BM25 indexes: the title, repeated, then the passage's text."""
    return f"{(title + ' ') * title_weight}{text}"


def read_corpus(path: Path) -> list[str]:
    """Read the contents of each passage, in file order: a title in quotes, a line break, and the text.

    A line is `{"id": …, "contents": "\\"Title\\"\\ntext"}`, or has `title` and `text` instead of `contents`.
    Contents of one line have no title. Blank lines are skipped and other fields are ignored.

    Raises:
        ConfigError: the file does not exist, is empty or not JSON Lines, or `contents` is missing or blank.
    """
    field = "environment.corpus"
    passages: list[str] = []
    for place, row in json_lines(path, field):
        name = "text" if "contents" not in row and "title" in row else "contents"
        text = row.get(name)
        if not isinstance(text, str) or not text.strip():
            value = shorten(text) if name in row else f"missing, beside {list_names(row)}"
            raise ConfigError(
                f'{place}: "{name}" is {value}; expected text, as in "contents": "\\"Title\\"\\ntext"'
            )
        text = encodable(text.strip())
        if name == "text":
            title = " ".join(plain_text(row["title"]).split())
            text = f'"{title}"\n{text}' if title else " ".join(text.split("\n"))
        passages.append(text)
    if not passages:
        raise ConfigError(f'{field}: {path} is empty; expected lines of {{"id": …, "contents": …}}')
    return passages
