"""A hook of mkdocs: links to files outside docs/, for readers of the repository, become plain text on the site."""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+(?:lab/|CONTRIBUTING\.md)[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page's text without its links to lab/ and CONTRIBUTING.md."""
    return _OUTSIDE.sub(r"\1", markdown)
