"""The tutorial shows exactly what is in the example's files."""

import difflib
import json

import pytest

from tests.docs.sources import DOCS, blocks
from tests.examples.three_tools import FOLDER

PAGE = DOCS / "tutorial.md"


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(("language", "file"), [("python", "task.py"), ("json", "questions.jsonl")])
def test_snippets_stand_in_the_example(language: str, file: str) -> None:
    shown = blocks(PAGE, language)
    assert shown
    for block in shown:
        assert f"\n{block}" in f"\n{text_of(file)}", block
        if language == "json":
            assert set(json.loads(block)) == {"question", "answer"}


def test_the_run_file_is_shown_whole() -> None:
    assert blocks(PAGE, "yaml") == [text_of("run.yaml")]


def test_the_diff_is_that_of_the_scripts() -> None:
    """The page shows all of it except the docstrings at the top and the line numbers."""
    before, after = (text_of(n).splitlines() for n in ("plain_trl.py", "with_cotune.py"))
    lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    whole = ["@@" if line.startswith("@@") else line for line in lines]
    (shown,) = blocks(PAGE, "diff")
    assert whole[-len(shown.splitlines()) :] == shown.splitlines()
    left_out = whole[: -len(shown.splitlines())]
    assert not [line for line in left_out if "import" in line]
