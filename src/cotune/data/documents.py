"""Retrieved documents, and how they are written out for the policy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Document:
    """One passage of a corpus.

    Attributes:
        id: as the corpus gives it; "" where it gives none.
        contents: title and text as Search-R1 stores them: `"Title"`, a line break, the text.
        score: the retriever's, higher is better; None where it tells none.
    """

    id: str
    contents: str
    score: float | None = None

    @property
    def title(self) -> str:
        """The title without its quotes; "" where contents are one line."""
        return split_contents(self.contents)[0]

    @property
    def text(self) -> str:
        """What follows the title; all of it where there is no title."""
        return split_contents(self.contents)[1]


def split_contents(contents: str) -> tuple[str, str]:
    """Title and text of Search-R1's `contents`; those of one line are a text without a title."""
    title, newline, text = contents.partition("\n")
    return (title.strip().strip('"').strip(), text.strip()) if newline else ("", contents.strip())


def join_contents(title: str, text: str) -> str:
    """Title and text as Search-R1's `contents`; without a title the text alone, on one line."""
    return f'"{title}"\n{text}' if title else " ".join(text.split("\n"))


def titled_passage(title: str, text: str) -> str:
    """A passage as cotune's own tag protocol shows it, before it is numbered."""
    return f'(Title: "{title}") {text}' if title else text


def titled_passages(documents: Sequence[Document]) -> list[str]:
    """`titled_passage` of each document."""
    return [titled_passage(document.title, document.text) for document in documents]


def indexed_text(title: str, text: str, title_weight: int) -> str:
    """What BM25 indexes of a passage: its title so many times, then its text."""
    return f"{(title + ' ') * title_weight}{text}"


def search_r1_passages(documents: Sequence[Document]) -> list[str]:
    """One line a document as in Search-R1, which shows them joined, each ended by a line break.

    As its `_passages2string`: the first line of `contents` is the title with its quotes, the rest
    follows as it is.
    """
    lines: list[str] = []
    for number, document in enumerate(documents, 1):
        title, _, text = document.contents.partition("\n")
        lines.append(f"Doc {number}(Title: {title}) {text}")
    return lines


Style = Literal["cotune", "search-r1"]
"""A name of `STYLES`."""

STYLES: dict[str, Callable[[Sequence[Document]], list[str]]] = {
    "cotune": titled_passages,
    "search-r1": search_r1_passages,
}
"""How the documents of one query become the texts that an environment shows, by name."""
