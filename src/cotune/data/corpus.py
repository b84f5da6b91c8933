"""Passages of a corpus: read from Search-R1's JSONL format, and written out for the policy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from cotune.data.cells import listed, plain_text, shortened
from cotune.data.rows import json_rows
from cotune.errors import ConfigError

Language = Literal[
    "english", "danish", "dutch", "french", "german", "italian", "norwegian", "portuguese", "russian",
    "spanish", "swedish", "turkish", "none",
]  # fmt: skip
"""Languages that BM25 stems and has stop words of; "none" is neither."""

_EXAMPLE = '"contents": "\\"Title\\"\\ntext"'


def join_contents(title: str, text: str) -> str:
    """Join title and text as Search-R1's `contents`; without a title, the text on one line."""
    return f'"{title}"\n{text}' if title else " ".join(text.split("\n"))


def split_contents(contents: str) -> tuple[str, str]:
    """Return the title, without its quotes, and the text; contents of one line have the title ""."""
    title, newline, text = contents.partition("\n")
    return (title.strip().strip('"').strip(), text.strip()) if newline else ("", title.strip())


def shown_passage(contents: str, protocol: str) -> str:
    """Return a passage as a policy reads it, before it is numbered: `(Title: "Oslo") …`.

    Under the protocol "search-r1" it is as Search-R1's `_passages2string` writes it: the first line is
    the title with its quotes, the rest follows unchanged.
    """
    if protocol == "search-r1":
        title, _, text = contents.partition("\n")
        return f"(Title: {title}) {text}"
    title, text = split_contents(contents)
    return f'(Title: "{title}") {text}' if title else text


def indexed_text(title: str, text: str, title_weight: int) -> str:
    """Return the text that BM25 indexes: the title, repeated, then the passage's text."""
    return f"{(title + ' ') * title_weight}{text}"


def read_corpus(path: Path) -> list[tuple[str, str]]:
    """Read title and text of each passage, in file order.

    A line is `{"id": …, "contents": "\\"Title\\"\\ntext"}`: the first line of `contents` is the
    title, its quotes are dropped, and the rest is the text. Contents of one line are a text with
    the title "". A line without `contents` may have `title` and `text`. Blank lines are skipped and
    other fields are ignored.

    Raises:
        ConfigError: the file does not exist, is empty or not JSON Lines, `contents` is missing or
            blank, or an id is repeated.
    """
    field = "environment.corpus"
    passages = list[tuple[str, str]]()
    first_with: dict[str, str] = {}
    for place, row in json_rows(path, field):
        passages.append(split_contents(_contents(row, place)))
        id = plain_text(row.get("id"))
        if id and first_with.setdefault(id, place) != place:
            raise ConfigError(
                f"{place}: the id {shortened(id)} came before, in {first_with[id].rpartition(', ')[2]}; "
                "give each passage its own id, or none"
            )
    if not passages:
        raise ConfigError(f'{field}: {path} is empty; expected lines of {{"id": …, "contents": …}}')
    return passages


def _contents(row: Mapping[str, Any], place: str) -> str:
    """Return a row's contents, or its title and text joined; ConfigError if they are no text."""
    name = "text" if "contents" not in row and "title" in row else "contents"
    text = row.get(name)
    if not isinstance(text, str) or not text.strip():
        value = (
            shortened(text)
            if name in row
            else f"missing, beside {listed(row) if row else 'nothing'}"
        )
        raise ConfigError(f'{place}: "{name}" is {value}; expected text, as in {_EXAMPLE}')
    if name == "contents":
        return text.strip()
    return join_contents(" ".join(plain_text(row["title"]).split()), text.strip())
