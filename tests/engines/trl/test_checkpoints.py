"""A checkpoint is a pair; only whole pairs are resumed from."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from cotune.engines.run_start import choose_checkpoint
from cotune.engines.trl.checkpoints import (
    complete_checkpoint,
    complete_checkpoints,
    drop_orphans,
    drop_torn,
    load_state,
    save_state,
    state_path,
)
from cotune.engines.trl.joint_trainer import TRLBest
from cotune.errors import ConfigError
from cotune.run.best import BestRecord
from cotune.run.manifest import MANIFEST, Chosen, newest_undamaged
from cotune.run.record import Record
from tests.engines.trl.setup import Counting, Run, start
from tests.helpers import WAITING
from tests.policy.tiny import tiny_tokenizer

SAVING = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
TIME_LIKE = {"step_time", "time", "attempt", *WAITING}


def whole_pair(folder: Path, step: int) -> Path:
    save_state(folder, step, {"batches": step})
    trainers = folder / f"checkpoint-{step}"
    trainers.mkdir()
    for name in ("trainer_state.json", "model.safetensors", "optimizer.pt", "rng_state.pth"):
        (trainers / name).write_bytes(name.encode() * 9)
    complete_checkpoint(folder, step)
    return trainers


def choose(folder: Path) -> Chosen:
    return newest_undamaged(complete_checkpoints(folder))


def test_the_newest_whole_pair_is_taken(tmp_path: Path) -> None:
    assert choose(tmp_path).path is None
    assert choose(tmp_path / "absent").path is None
    for step in (2, 10, 9):  # by number: neither by name nor by age
        whole_pair(tmp_path, step)
    (tmp_path / "checkpoint-last").mkdir()
    assert choose(tmp_path).path == tmp_path / "checkpoint-10"


def test_a_pair_without_its_manifest_is_passed_over_and_dropped(tmp_path: Path) -> None:
    """The trainer's rotation counts folders, whole or not, and would drop a whole one for them."""
    whole_pair(tmp_path, 4)
    torn = whole_pair(tmp_path, 8)
    (torn / MANIFEST).unlink()
    (tmp_path / "checkpoint-9").mkdir()  # none of ours: no state lies beside it
    (tmp_path / "checkpoint-notes").mkdir()
    assert choose(tmp_path).path == tmp_path / "checkpoint-4"
    drop_torn(tmp_path)
    names = sorted(p.name for p in tmp_path.glob("checkpoint-*"))
    assert names == ["checkpoint-4", "checkpoint-9", "checkpoint-notes"]


def damage(file: Path, how: str) -> None:
    whole = file.read_bytes()
    file.unlink()
    if how != "missing":
        file.write_bytes({"emptied": b"", "halved": whole[: len(whole) // 2]}[how])


@pytest.mark.parametrize("how", ["emptied", "halved", "missing"])
@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors", "../cotune-state-8.json", MANIFEST,
    ],
)  # fmt: skip
def test_the_newest_pair_whose_manifest_holds_is_taken(tmp_path: Path, name: str, how: str) -> None:
    whole_pair(tmp_path, 4)
    newer = whole_pair(tmp_path, 8)
    assert choose(tmp_path).notices == ()
    damage(newer / name, how)
    chosen = choose(tmp_path)
    assert chosen.path == tmp_path / "checkpoint-4"
    if (name, how) == (MANIFEST, "missing"):  # as a kill leaves it
        assert chosen.notices == ()
        return
    (notice,) = chosen.notices
    victim = (newer / name).resolve()
    assert notice == f"checkpoint-8 is skipped: {victim} is damaged or missing"
    assert chosen.newer == (newer,)
    chosen.set_aside()
    assert sorted(p.name for p in tmp_path.glob("*checkpoint-*")) == [
        "aside-checkpoint-8",
        "checkpoint-4",
    ]
    # If no pair is whole the run does not start over, which would remove its logs.
    damage(tmp_path / "checkpoint-4" / "optimizer.pt", "halved")
    with pytest.raises(ConfigError, match=r"optimizer\.pt: is damaged or missing, and no"):
        choose(tmp_path)


def test_a_damaged_checkpoint_that_the_user_chose_is_refused(tmp_path: Path) -> None:
    start(tmp_path, **SAVING).trainer.train()
    folder = tmp_path / "checkpoints"
    assert choose(folder).path == folder / "checkpoint-2"
    assert choose(folder).notices == ()
    changed = folder / "checkpoint-2" / "config.json"  # the trainer itself does not miss it
    changed.write_text(changed.read_text() + " ")
    assert choose(folder).path == folder / "checkpoint-1"
    with pytest.raises(ConfigError, match=r"config\.json: is damaged or missing, and no"):
        newest_undamaged([changed.parent])
    run = start(tmp_path, resume=True, **SAVING, max_steps=3)
    chosen = choose(folder)
    chosen.set_aside()
    run.joint.notices = chosen.notices
    run.trainer.train(resume_from_checkpoint=str(chosen.path))
    told = [row["text"] for row in run.folder.read_events() if row["kind"] == "notice"]
    assert told == [f"checkpoint-2 is skipped: {changed} is damaged or missing"]
    assert [row["step"] for row in numbers(run)] == [1, 2, 3]


def test_what_a_resume_needs_is_checked_and_left_as_it_is(tmp_path: Path) -> None:
    run = Record.create(tmp_path / "run", {"name": "x"})
    run.event("run_started", 0)
    checkpoint = whole_pair(run.checkpoints_path, 4)
    run.best_path.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (run.best_path / name).write_text("{}")
    save_file({}, run.best_path / "model.safetensors")
    BestRecord(instruction="Do.").write(run.best_path)
    best = TRLBest(run.best_path, tiny_tokenizer())
    assert choose_checkpoint([checkpoint], best).path == checkpoint
    for file in (run.best_path / "model.safetensors", checkpoint / "optimizer.pt"):
        whole = file.read_bytes()
        file.write_bytes(whole[1:])
        before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
        with pytest.raises(ConfigError, match=file.name):
            choose_checkpoint([checkpoint], best)
        assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before
        file.write_bytes(whole)


def test_states_are_dropped_with_the_checkpoints_they_belong_to(tmp_path: Path) -> None:
    whole_pair(tmp_path, 4)
    for step in (2, 6):
        save_state(tmp_path, step, {"batches": step})
    drop_orphans(tmp_path, keep_from=6)
    assert sorted(p.name for p in tmp_path.glob("cotune-state-*")) == [
        "cotune-state-4.json",
        "cotune-state-6.json",
    ]


def numbers(run: Run) -> list[dict[str, Any]]:
    rows = run.folder.read_metrics()
    return [{k: v for k, v in row.items() if k not in TIME_LIKE} for row in rows]


def test_the_state_is_saved_before_the_trainers_half(tmp_path: Path) -> None:
    run = start(tmp_path, **SAVING)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    run.trainer._save_checkpoint = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run.trainer.train()
    folder = tmp_path / "checkpoints"
    assert load_state(folder, 1) == run.joint.state_dict()
    assert choose(folder).path is None


def test_a_checkpoint_without_its_state_is_not_resumed_from(tmp_path: Path) -> None:
    torn = tmp_path / "checkpoints" / "checkpoint-7"  # of a save of ours that was cut off
    torn.mkdir(parents=True)
    save_state(torn.parent, 7, {"batches": 7})
    start(tmp_path, **SAVING).trainer.train()
    folder = tmp_path / "checkpoints"
    assert {p.name for p in folder.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-2"}
    state_path(folder, 1).unlink()
    run = start(tmp_path, Counting(), resume=True, **SAVING)
    with pytest.raises(ConfigError, match=r"checkpoint-1 has no readable cotune-state-1\.json"):
        run.trainer.train(resume_from_checkpoint=str(folder / "checkpoint-1"))
