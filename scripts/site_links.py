"""Hooks of mkdocs: what a page of the repository becomes on the site.

Links to files outside docs/ become plain text. The public names of reference/api.md become directives of
mkdocstrings, which the site shows as signatures with their whole docstrings.
"""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+(?:lab/|CONTRIBUTING\.md)[^)]*\)")
_PUBLIC_NAME = re.compile(r"^- `(\w+)`: .*$", re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page's text for the site."""
    if page.file.src_uri == "reference/api.md":
        markdown = _PUBLIC_NAME.sub(r"\n::: cotune.\1\n", markdown)
    return _OUTSIDE.sub(r"\1", markdown)
