"""The site that `make docs` has built, which also runs these tests: whole, and its pages need no network."""

import re

import pytest

from tests.docs.sources import ROOT

pytestmark = pytest.mark.slow
_LOADED = re.compile(r"<(?:script|img|iframe|source|video|audio|object|link)\b[^>]*>")
_ELSEWHERE = re.compile(r"""\b(?:src|href|data)=["'](?:https?:)?//""")


def test_nothing_is_fetched_from_elsewhere() -> None:
    site = ROOT / "site"
    assert site.is_dir(), "make docs builds it"
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        tags = [tag for tag in _LOADED.findall(text) if 'rel="canonical"' not in tag]
        assert tags
        assert not list(filter(_ELSEWHERE.search, tags)), page.name
        assert 'class="mermaid"' not in text, "the theme would fetch mermaid"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(['\"]?|@import ['\"])(https?:)?//", sheet.read_text("utf-8"))
