"""A hook of mkdocs: links into lab/, which are for readers of the repository, become plain text on the site."""

import re
from typing import Any

_LAB = re.compile(r"\[([^\]]*)\]\((?:\.\./)+lab/[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page's text without its links into lab/."""
    return _LAB.sub(r"\1", markdown)
