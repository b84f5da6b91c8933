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

# Characters that a browser would not show or that would reorder the page: C0 and C1 controls and
# marks of writing direction. A line feed and a tab stay.
_PICTURES = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}


# A sentence ends at . ! or ? before white space (not after a list's number) or at a line's end.
_SENTENCE = re.compile(r"\s*\S.*?(?:(?<!\d)[.!?]+[\"')\]]*(?=\s)|(?=\n)|\Z)", re.DOTALL)
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


def label(value: object) -> str:
    """Return a short name for a part of a run file: a plain value, or a section's own name."""
    if isinstance(value, Mapping):
        names = ("kind", "type", "name", "path", "id")
        return next((str(value[name]) for name in names if value.get(name)), "")
    return "" if value is None else str(value)


def sentence_diff(parent: str, child: str) -> list[Segment]:
    """Return `child` as segments that its parent has or lacks, with the parent's that are gone.

    The "same" and "new" segments joined are `child` without trailing white space. Nothing is marked if the parent
    is empty.
    """
    if not parent.strip():
        return [("same", child.rstrip())]
    old = _SENTENCE.findall(parent.rstrip())
    new = _SENTENCE.findall(child.rstrip())
    matcher = difflib.SequenceMatcher(
        None, [s.strip() for s in old], [s.strip() for s in new], autojunk=False
    )
    segments: list[Segment] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        text = "".join(new[j1:j2])
        if tag in ("replace", "delete"):
            segments.append(("gone", "".join(old[i1:i2])))
        if tag == "equal":
            segments.append(("same", text))
        elif tag != "delete":
            space = len(text) - len(text.lstrip())
            segments += [("same", text[:space]), ("new", text[space:])]
    return segments


def reasons(events: Iterable[Row]) -> list[tuple[str, int]]:
    """Count the reasons of rejections or failures, the most frequent first."""
    return Counter(event["reason"] for event in events).most_common()


def write_page(folder: Path, template: str, content: Mapping[str, object]) -> Path:
    """Render a template of this package into a folder's report.html.

    Everything is escaped and an unknown name is an error. Control characters become pictures (␀, ␛).
    """
    # The style sheet is part of the package, not written by a model.
    css = Markup(files(__package__ or __name__).joinpath("report.css").read_text(encoding="utf-8"))
    html = environment().get_template(template).render(style=css, **content)
    path = folder / "report.html"
    write_atomic(path, html.translate(_PICTURES).encode(errors="replace"))
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
