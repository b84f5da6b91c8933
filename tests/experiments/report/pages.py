"""Pages as their readers see them: a parser that fails on what a report must not hold."""

import io
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from rich.console import Console

from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory, Turn

_REPORT = re.compile(r"\./[\w./%+-]+/report\.html")
VOID = {"meta", "br", "line", "circle", "polyline", "polygon"}


class Checker(HTMLParser):
    """Collects what a page holds and fails on unbalanced tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return _words(" ".join(self.text))

    @property
    def links(self) -> list[str]:
        return [value for _, name, value in self.attributes if name == "href"]


def _words(text: str) -> str:
    return " ".join(text.replace("\u202f", "_").split())


def rows_of(html: str) -> list[list[str]]:
    """The text of each cell of each row of all tables."""
    return [
        [
            unescape(_words(re.sub(r"<[^>]*>", " ", cell)))
            for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        ]
        for row in re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    ]


def check(path: Path) -> Checker:
    """A well-formed page without scripts, handlers or anything loaded from elsewhere."""
    html = path.read_text(encoding="utf-8")
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(checker.tags)
    ids = {value for _, name, value in checker.attributes if name == "id"}
    for _, name, value in checker.attributes:
        assert name not in ("src", "srcset", "action")
        # Parts of the page itself, and reports of a suite's runs.
        assert name != "href" or value.removeprefix("#") in ids or _REPORT.fullmatch(value), value
        assert not name.startswith("on")
        assert "://" not in value
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", html)
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in html
    return checker


def rollout(
    reward: float,
    turns: tuple[Turn, ...] = (
        Turn("<search>é</search>", "\nFound: é.\n", "search"),
        Turn("<answer>b</answer>", "", "answer"),
    ),
    *,
    group: int = 0,
    hint: str = "",
    question: str = "Which?",
) -> Trajectory:
    trained = Prompt("Search, then answer.")
    sampled = replace(trained, hint=hint)
    return Trajectory(
        Assignment(Task(f"q{group}", question, ("b",), "easy"), sampled, trained, "i0", group),
        (1,), (1,), (2,), (1,), (0.0,), turns, StopReason.ANSWERED, "b", reward,
    )  # fmt: skip


def console_text(table: Any) -> str:
    """Return a table as the console shows it, 160 columns wide."""
    console = Console(file=io.StringIO(), width=160)
    console.print(table)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
