"""Sizes that tell whether files are still there, and whole."""

from pathlib import Path

import pytest

from cotune.run.manifest import MANIFEST, damaged_file, write_manifest


def test_a_manifest_holds_for_what_was_written_alone(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    (folder / "deep").mkdir(parents=True)
    (folder / "a").write_bytes(b"abc")
    (folder / "deep" / "b").write_bytes(b"")
    (tmp_path / "besides").write_bytes(b"x")
    assert damaged_file(folder) == folder / MANIFEST
    write_manifest(folder, [tmp_path / "besides"])
    assert damaged_file(folder) is None
    (folder / "new").touch()  # what came later is not its concern
    assert damaged_file(folder) is None
    for file in (folder / "a", folder / "deep" / "b", tmp_path / "besides"):
        before = file.read_bytes()
        file.write_bytes(before + b"!")
        assert damaged_file(folder) == file
        file.unlink()
        assert damaged_file(folder) == file
        file.write_bytes(before)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"sizes": 3}', '{"sizes": {"a": []}}'])
def test_a_manifest_that_is_none_is_the_damaged_file(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    assert damaged_file(tmp_path) == tmp_path / MANIFEST
