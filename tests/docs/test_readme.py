"""The README: its code, commands and links are valid."""

import re
import shutil
from pathlib import Path

import pytest

from tests.docs.sources import ROOT, blocks
from tests.forked import run_module

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROSE = re.sub(r"\]\([^)]*\)", "]", re.sub(r"```.*?```", "", README, flags=re.DOTALL))
NUMBERS = re.findall(r"(?<![\w.-])\d+(?:[.,]\d+)*", PROSE)


def test_it_is_read_in_a_few_minutes() -> None:
    assert len(README.split()) <= 600
    assert len(NUMBERS) <= 15
    assert README.count("![") == 2
    assert len(blocks(ROOT / "README.md", "python")) == 1


def test_its_scores_stand_in_the_results() -> None:
    results = (ROOT / "lab" / "results" / "README.md").read_text(encoding="utf-8")
    scores = [number for number in NUMBERS if number.startswith("0.")]
    assert len(scores) >= 10
    assert [score for score in scores if score not in results] == []


@pytest.mark.slow
def test_the_script_runs_and_learns(tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "README.md", "python")
    folder = shutil.copytree(ROOT / "examples" / "three_tools", tmp_path / "three_tools")
    (folder / "readme.py").write_text(text, encoding="utf-8")
    process = run_module("tests.docs.forked_script", folder, "readme.py")
    assert process.returncode == 0, process.stderr
    scores = re.search(r"^([\d.]+) -> ([\d.]+) under: \S", process.stdout, re.MULTILINE)
    assert scores is not None, process.stdout
    assert float(scores[2]) > float(scores[1]) + 0.2
    assert (folder / "runs" / "readme" / "cotune" / "report.html").is_file()


def test_make_targets_and_linked_files_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([\w-]+)`", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    # Links between the pages of docs/ are checked where they are built (tests/docs).
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for page in pages:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"
