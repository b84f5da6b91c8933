"""Checkpoints of both engines: complete with their manifest, and whole by its sizes."""

from pathlib import Path

import pytest

from cotune.errors import ConfigError
from cotune.run.checkpoints import (
    MANIFEST,
    STATE,
    Chosen,
    complete_checkpoints,
    damaged_file,
    load_state,
    newest_undamaged,
    save_state,
    write_manifest,
)


@pytest.fixture(params=["checkpoint-", "global_step_"])
def prefix(request: pytest.FixtureRequest) -> str:
    return request.param


def saved(path: Path) -> Path:
    """A complete checkpoint, as a trainer and cotune write it."""
    (path / "actor").mkdir(parents=True)
    for name in ("trainer_state.json", "actor/model.safetensors"):
        (path / name).write_bytes(name.encode() * 9)
    save_state(path, {"batches": 3, "coordinator": {"é": [0.1, None, True]}})
    return path


def choose(folder: Path) -> Chosen:
    return newest_undamaged(complete_checkpoints(folder))


def test_the_newest_complete_one_is_taken(tmp_path: Path, prefix: str) -> None:
    assert choose(tmp_path) == choose(tmp_path / "absent") == Chosen()
    for step in (2, 10, 9):  # by number: neither by name nor by age
        saved(tmp_path / f"{prefix}{step}")
    (saved(tmp_path / f"{prefix}11") / MANIFEST).unlink()  # a kill came first
    for other in ("checkpoint-last", "global_step_tmp", "best/step_12"):
        saved(tmp_path / other)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("11")
    chosen = choose(tmp_path)
    assert (chosen.path, chosen.notices) == (tmp_path / f"{prefix}10", ())
    state = {"batches": 3, "coordinator": {"é": [0.1, None, True]}}
    assert load_state(tmp_path / f"{prefix}10") == state


@pytest.mark.parametrize("how", ["emptied", "halved", "missing"])
@pytest.mark.parametrize("name", ["actor/model.safetensors", STATE, MANIFEST])
def test_a_damaged_one_is_passed_over_and_set_aside(
    tmp_path: Path, prefix: str, name: str, how: str
) -> None:
    older = saved(tmp_path / f"{prefix}4")
    newer = saved(tmp_path / f"{prefix}8")
    victim = newer / name
    whole = victim.read_bytes()
    victim.unlink()
    if how != "missing":
        victim.write_bytes(b"" if how == "emptied" else whole[: len(whole) // 2])
    chosen = choose(tmp_path)
    assert chosen.path == older
    if (name, how) == (MANIFEST, "missing"):  # as a kill leaves it
        assert chosen == Chosen(older)
        return
    assert chosen.notices == (f"{newer.name} is skipped: {victim} is damaged or missing",)
    chosen.set_aside()
    assert {path.name for path in tmp_path.iterdir()} == {older.name, f"aside-{newer.name}"}
    # If none is whole the run does not start over, which would remove its logs.
    (older / "trainer_state.json").unlink()
    with pytest.raises(ConfigError, match=r"trainer_state\.json: is damaged or missing, and no"):
        choose(tmp_path)


def test_a_manifest_holds_for_what_was_written_alone(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    (folder / "deep").mkdir(parents=True)
    (folder / "a").write_bytes(b"abc")
    (folder / "deep" / "b").write_bytes(b"")
    write_manifest(folder)
    (folder / "new").touch()  # what came later is not its concern
    assert damaged_file(folder) is None
    for file in (folder / "a", folder / "deep" / "b"):
        before = file.read_bytes()
        file.write_bytes(before + b"!")
        assert damaged_file(folder) == file
        file.write_bytes(before)


@pytest.mark.parametrize("text", ["{", "[]", '{"sizes": 3}', '{"sizes": {"a": []}}'])
def test_a_manifest_that_is_none_is_the_damaged_file(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    assert damaged_file(tmp_path) == tmp_path / MANIFEST
