"""Hashes that tell whether files are still what was written."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.run.manifest import MANIFEST, Manifest, hashes, read_manifest, sealed, unsealed

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_a_manifest_holds_for_what_was_written_alone(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    (folder / "deep").mkdir(parents=True)
    (folder / "a").write_bytes(b"abc")
    (folder / "deep" / "b").write_bytes(b"")
    (tmp_path / "besides").write_bytes(b"x")
    assert read_manifest(folder) is None
    files = hashes(folder, [tmp_path / "besides"])
    # FIPS 180-4's example.
    assert files["a"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert list(files) == ["a", "deep/b", "../besides"]
    Manifest(files=files, logs={"events.jsonl": (7, "00")}).write(folder)
    found = read_manifest(folder)
    assert found is not None
    assert found == Manifest(files=files, logs={"events.jsonl": (7, "00")})
    assert hashes(folder, [tmp_path / "besides"]) == files
    assert found.damaged(folder) is None
    (folder / "new").touch()  # what came later is not its concern
    assert found.damaged(folder) is None
    for file in (folder / "a", folder / "deep" / "b", tmp_path / "besides"):
        before = file.read_bytes()
        file.write_bytes(before + b"!")
        assert found.damaged(folder) == file
        file.unlink()
        assert found.damaged(folder) == file
        file.write_bytes(before)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"files": 3, "logs": {}}'])
def test_a_manifest_that_is_none_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(ValueError):  # noqa: PT011 (of json, or our own)
        read_manifest(tmp_path)


@given(
    st.dictionaries(
        st.text().filter(lambda key: key not in ("sha256", "changed")), JSON, max_size=4
    ),
    st.text(),
)
def test_a_sealed_object_is_read_back_or_refused(row: dict[str, object], other: str) -> None:
    read = json.loads(json.dumps(sealed(row)))
    assert unsealed(read) == row
    assert unsealed(row) == row
    read["changed"] = other
    with pytest.raises(ValueError, match="not what was written"):
        unsealed(read)
