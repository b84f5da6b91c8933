"""Troubleshooting quotes messages that exist, and covers the common ones."""

import re

import pytest

from tests.docs.sources import DOCS, HOLE, is_said, templates

PAGE = (DOCS / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")
ENTRY = re.compile(r"^- (\S.*)\n\n    (\S.*)$", re.MULTILINE)
MESSAGES = [term[1:-1] for term, _ in ENTRY.findall(PAGE) if term.startswith("`")]


@pytest.mark.parametrize("message", MESSAGES)
def test_every_message_is_one_of_the_package(message: str) -> None:
    assert len(message.replace(HOLE, "").strip()) >= 12, "too short to find anything by"
    assert is_said(message, templates())


def test_the_likely_ones_are_there() -> None:
    assert len(set(MESSAGES)) == len(MESSAGES) >= 25
    for word in ("unknown field", "dataset.columns", "the prompt of task", "evolves", "is not set"):
        assert any(word in message for message in MESSAGES), word
