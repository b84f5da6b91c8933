"""The site that `make docs` has built, which also runs these tests: whole, and its pages need no network."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.docs.sources import ROOT

pytestmark = pytest.mark.slow


class _Loads(HTMLParser):
    """Collects the URLs that a browser fetches for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.urls.append(given.get("href") or "")
        if tag in ("script", "img", "iframe", "source", "video", "audio", "object"):
            self.urls += [given.get("src") or "", given.get("data") or ""]


@pytest.fixture(scope="module")
def site() -> Path:
    folder = ROOT / "site"
    assert folder.is_dir(), "make docs builds it"
    return folder


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loads = _Loads()
        text = page.read_text(encoding="utf-8")
        loads.feed(text)
        assert loads.urls
        outside = [url for url in loads.urls if re.match(r"(https?:)?//", url)]
        assert not outside, f"{page.name}: {outside}"
        assert 'class="mermaid"' not in text, "the theme would fetch mermaid"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(['\"]?|@import ['\"])(https?:)?//", sheet.read_text("utf-8"))
