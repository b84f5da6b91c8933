"""Checkpoints of both engines, complete with cotune's state."""

from pathlib import Path

import pytest

from cotune.run.checkpoints import (
    STATE,
    complete_checkpoints,
    load_state,
    save_state,
    set_aside_newer,
    trained_steps,
)

STEP_STATE = {"batches": 3, "coordinator": {"é": [0.1, None, True]}}


def save_checkpoint(path: Path) -> Path:
    """A complete checkpoint, as a trainer and cotune write it."""
    (path / "actor").mkdir(parents=True)
    (path / "actor" / "model.safetensors").write_bytes(b"weights")
    save_state(path, STEP_STATE)
    return path


@pytest.mark.parametrize("prefix", ["checkpoint-", "global_step_"])
def test_the_newest_complete_one_is_taken(tmp_path: Path, prefix: str) -> None:
    assert complete_checkpoints(tmp_path) == complete_checkpoints(tmp_path / "absent") == []
    assert trained_steps(tmp_path) is None
    for step in (2, 10, 9):  # by number: neither by name nor by age
        save_checkpoint(tmp_path / f"{prefix}{step}")
    (save_checkpoint(tmp_path / f"{prefix}11") / STATE).unlink()  # a kill came first
    for other in ("checkpoint-last", "global_step_tmp", "best/step_12"):
        save_checkpoint(tmp_path / other)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("11")
    assert [path.name for path in complete_checkpoints(tmp_path)] == [
        f"{prefix}{step}" for step in (10, 9, 2)
    ]
    assert load_state(tmp_path / f"{prefix}10") == STEP_STATE
    assert trained_steps(tmp_path) == 3
    # A run that goes on from an earlier one sets aside what is newer, complete or not.
    for _ in range(2):
        save_checkpoint(tmp_path / f"{prefix}12")
        set_aside_newer(tmp_path / f"{prefix}9")
    names = {path.name for path in tmp_path.glob(f"*{prefix}[0-9]*")}
    assert names == {
        *(f"{prefix}{step}" for step in (2, 9)), *(f"aside-{prefix}{step}" for step in (10, 11, 12)),
    }  # fmt: skip
