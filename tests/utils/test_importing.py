"""Objects that a run file names, and the collector while libraries load."""

from pathlib import Path

import pytest

from cotune.utils.importing import import_object
from tests.helpers import raises_line


def test_an_object_of_a_module_of_one_of_its_members_or_of_a_file(cwd: Path) -> None:
    assert import_object("json:dumps", "rewards")([1]) == "[1]"
    assert import_object("json:JSONDecoder.decode", "rewards").__name__ == "decode"
    (cwd / "mine.py").write_text("class Own:\n    pass\n", encoding="utf-8")
    assert import_object("mine.py:Own", "rewards") is import_object("mine.py:Own", "rewards")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("json", "rewards: 'json' names no object; expected package.module:name or file.py:name"),
        (":f", "names no object"),
        (
            "no_such_package.x:f",
            "rewards: importing no_such_package.x failed: ModuleNotFoundError: No module named",
        ),
        ("json:dump_s", "rewards: json has no dump_s; correct the name"),
        ("gone.py:f", "rewards: no file gone.py"),
        ("broken.py:f", "importing broken.py failed: ZeroDivisionError: division by zero"),
        ("leaves.py:f", "importing leaves.py failed: SystemExit: 0"),
        ("needing:f", "importing needing failed: ModuleNotFoundError: No module named 'nothing"),
    ],
)
def test_what_cannot_be_had_is_said_with_the_field(
    reference: str, message: str, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(cwd)
    (cwd / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    (cwd / "leaves.py").write_text("raise SystemExit(0)\n", encoding="utf-8")
    (cwd / "needing.py").write_text("import nothing_here\n", encoding="utf-8")
    with raises_line(message):
        import_object(reference, "rewards")
