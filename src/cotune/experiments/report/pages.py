"""Pages of reports: the templates, and texts in them."""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cotune.run.json_files import Row, write_atomic
from cotune.utils.tables import count, number, percent
from cotune.utils.text import printable

# A sentence, with the white space behind it, ends at . ! or ? (not after a list's number) or at a line's end.
_SENTENCE = re.compile(r".+?(?:(?<!\d)[.!?]+[\"')\]]*\s+|\n\s*|\Z)", re.DOTALL)
Segment = tuple[str, str]
"""("same" | "new" | "gone", text)."""


def moment(seconds: float) -> str:
    """Write Unix time as a UTC date and minute."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def cut(text: object, characters: int = 2000) -> str:
    """Return the start of a long text and how many characters are left out; a page stays small."""
    content = "" if text is None else str(text)
    more = len(content) - characters
    return f"{content[:characters]} … {count(more)} more characters" if more > 0 else content


def sentence_diff(parent: str, child: str) -> list[Segment]:
    """Return `child` as segments that its parent has or lacks, with the parent's that are gone.

    The "same" and "new" segments joined are `child`. Nothing is marked if the parent is empty.
    """
    if not parent.strip():
        return [("same", child)]
    old = _SENTENCE.findall(parent)
    new = _SENTENCE.findall(child)
    matcher = difflib.SequenceMatcher(
        None, [s.strip() for s in old], [s.strip() for s in new], autojunk=False
    )
    segments: list[Segment] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag != "equal":
            segments.append(("gone", "".join(old[i1:i2])))
        segments.append(("same" if tag == "equal" else "new", "".join(new[j1:j2])))
    return [segment for segment in segments if segment[1]]


def reasons(events: Iterable[Row]) -> list[tuple[str, int]]:
    """Count the reasons of rejections or failures, the most frequent first."""
    return Counter(event["reason"] for event in events).most_common()


def write_page(folder: Path, template: str, content: Mapping[str, object]) -> Path:
    """Render a template of this package into a folder's report.html.

    Everything is escaped and an unknown name is an error. Control characters and marks of writing direction are
    left out.
    """
    # The style sheet is part of the package, not written by a model.
    css = Markup(files(__package__ or __name__).joinpath("report.css").read_text(encoding="utf-8"))
    html = environment().get_template(template).render(style=css, **content)
    path = folder / "report.html"
    write_atomic(path, printable(html))
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
    templates.filters["diff"] = lambda child, parent: sentence_diff(parent, child)
    templates.filters["reasons"] = reasons
    return templates
