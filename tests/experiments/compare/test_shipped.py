"""The suites that ship: every run file of theirs is one, and their plan is shown."""

import io
import itertools
from pathlib import Path

import pytest
from rich.console import Console

from cotune.experiments.compare.methods import METHODS
from cotune.experiments.compare.running import dry_run, list_methods
from cotune.experiments.compare.suite_file import load_suite

FOLDER = Path(__file__).parents[3] / "configs" / "suites"
FILES = sorted(FOLDER.glob("*.yaml"))


def shown(work: object) -> str:
    console = Console(file=io.StringIO(), width=200)
    assert callable(work)
    work(console)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_there_are_the_papers_and_a_quick_one() -> None:
    assert {file.stem for file in FILES} == {
        "quick", "inspo-table1", "p2o-table-ladder", "p2o-transfer-arithmetic",
        "joint-arithmetic", "joint-arithmetic-tune", "ladder", "ladder-arms",
        "ladder-ablations", "ladder-tune", "ladder-control", "ladder-limit", "ladder-limit-tune", "scaffold",
        "scaffold-tune", "smollm2-arith", "smollm2-gym", "steerable",
    }  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_suite_is_dry_run(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    suite, _ = load_suite(file)
    assert suite.name == file.stem
    assert suite.output == Path("runs/suites") / file.stem
    assert suite.unequal == "refuse"
    text = shown(lambda console: dry_run(file, console))
    for entry in suite.methods:
        assert (entry.name or METHODS[entry.method].label) in text
    assert f"over {len(suite.seeds)} seeds; 0 of them are finished already" in text
    assert not list(tmp_path.iterdir())


def test_the_papers_methods_are_all_in_some_suite() -> None:
    used = {entry.method for file in FILES for entry in load_suite(file)[0].methods}
    assert METHODS.keys() == used


def test_suites_of_the_papers_have_three_seeds() -> None:
    seeds = {file.stem: load_suite(file)[0].seeds for file in FILES}
    assert seeds.pop("quick") == seeds.pop("p2o-transfer-arithmetic") == (0, 1)
    # What a rate was chosen by is not what it is reported on.
    for name in ("ladder-tune", "scaffold-tune"):
        assert seeds.pop(name) == (10, 11, 12)
    assert seeds.pop("joint-arithmetic-tune") == seeds.pop("ladder-limit-tune") == (10, 11)
    # Their rates were tried on seed 0.
    for name in ("smollm2-arith", "smollm2-gym", "steerable"):
        assert seeds.pop(name) == (1, 2, 3)
    assert seeds.pop("ladder") == seeds.pop("scaffold") == (0, 1, 2, 3, 4)
    assert set(seeds.values()) == {(0, 1, 2)}


def test_methods_are_listed() -> None:
    text = shown(list_methods)
    rows = text.splitlines()[2:]
    assert [row.split()[0] for row in rows] == list(METHODS)
    assert list(itertools.islice(METHODS, 2)) == ["direct", "rag"]
