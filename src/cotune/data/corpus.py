"""Passages of a corpus: read from Search-R1's JSONL format, and written out for the policy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cotune.data.rows import id_field, json_rows, shortened, text_field
from cotune.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Document:
    """One passage of a corpus.

    Attributes:
        id: the corpus's own id; "" if it has none.
        contents: title and text as Search-R1 stores them: `"Title"`, a line break, the text.
        score: the retriever's score, higher is better; None if it gives none.
    """

    id: str
    contents: str
    score: float | None = None

    @property
    def title(self) -> str:
        """Return the title without its quotes; "" if contents are one line."""
        title, newline, _ = self.contents.partition("\n")
        return title.strip().strip('"').strip() if newline else ""

    @property
    def text(self) -> str:
        """Return the text after the title; all of it if there is no title."""
        first, newline, text = self.contents.partition("\n")
        return (text if newline else first).strip()


def join_contents(title: str, text: str) -> str:
    """Join title and text as Search-R1's `contents`; without a title, the text on one line."""
    return f'"{title}"\n{text}' if title else " ".join(text.split("\n"))


def titled_passage(title: str, text: str) -> str:
    """Return a passage as cotune's own tag protocol shows it, before it is numbered."""
    return f'(Title: "{title}") {text}' if title else text


def indexed_text(title: str, text: str, title_weight: int) -> str:
    """Return the text that BM25 indexes: the title, repeated, then the passage's text."""
    return f"{(title + ' ') * title_weight}{text}"


def search_r1_passages(documents: Sequence[Document]) -> list[str]:
    """Return each document as Search-R1's `_passages2string` writes it.

    The first line of `contents` is the title with its quotes, the rest follows unchanged.
    """
    parts = (document.contents.partition("\n") for document in documents)
    return [f"Doc {i}(Title: {title}) {text}" for i, (title, _, text) in enumerate(parts, 1)]


Style = Literal["cotune", "search-r1"]
"""A name of `STYLES`."""

STYLES: dict[str, Callable[[Sequence[Document]], list[str]]] = {
    "cotune": lambda documents: [titled_passage(one.title, one.text) for one in documents],
    "search-r1": search_r1_passages,
}
"""Functions from the documents of one query to the texts that an environment shows, by name."""


Language = Literal[
    "english", "danish", "dutch", "french", "german", "italian", "norwegian", "portuguese", "russian",
    "spanish", "swedish", "turkish", "none",
]  # fmt: skip
"""Languages that BM25 stems and has stop words of; "none" is neither."""


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
    field, passages = "environment.corpus", list[tuple[str, str]]()
    line_of: dict[str, int] = {}
    for where, row in json_rows(path, field):
        document = _passage(row, where, str(len(line_of)))
        number = int(where.rpartition(" ")[2])
        first = line_of.setdefault(document.id, number)
        if first != number:
            raise ConfigError(
                f"{where}: the id {shortened(document.id)} came before, in line {first} (a passage "
                "without one has its number, from 0); give each passage its own id, or none"
            )
        passages.append((document.title, document.text))
    if not passages:
        raise ConfigError(f'{field}: {path} is empty; expected lines of {{"id": …, "contents": …}}')
    return passages


def _passage(row: Mapping[str, Any], where: str, number: str) -> Document:
    """Return a line's passage; `number` is the id of one that has none."""
    id = id_field(row, where, number)
    if "contents" not in row and "title" in row and "text" in row:
        title = row["title"]
        if not isinstance(title, str):
            raise ConfigError(f'{where}: "title" is {shortened(title)}; expected text')
        title = " ".join(title.split())
        return Document(id, join_contents(title, text_field(row, "text", where, '"text": "…"')))
    return Document(id, text_field(row, "contents", where, '"contents": "\\"Title\\"\\ntext"'))
