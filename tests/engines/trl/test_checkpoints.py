"""A checkpoint is a pair; only whole pairs are resumed from."""

from pathlib import Path
from typing import Any

import pytest
import torch
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
from cotune.engines.undamaged import Chosen, newest_undamaged
from cotune.errors import ConfigError
from cotune.run.best import BestRecord
from cotune.run.manifest import MANIFEST
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
    (trainers / "trainer_state.json").write_text('{"global_step": 1}')
    return trainers


def choose(folder: Path) -> Chosen:
    return newest_undamaged(complete_checkpoints(folder))


def test_a_state_round_trips(tmp_path: Path) -> None:
    state = {"batches": 3, "coordinator": {"é": [0.1, None, True]}}
    save_state(tmp_path / "new", 12, state)
    assert load_state(tmp_path / "new", 12) == state
    assert load_state(tmp_path / "new", 11) is None


def test_the_newest_whole_pair_is_taken(tmp_path: Path) -> None:
    assert choose(tmp_path).path is None
    assert choose(tmp_path / "absent").path is None
    for step in (2, 10, 9):  # by number: neither by name nor by age
        whole_pair(tmp_path, step)
    (tmp_path / "checkpoint-last").mkdir()
    assert choose(tmp_path).path == tmp_path / "checkpoint-10"


@pytest.mark.parametrize("torn", ["", '{"batches": 1', "[1]", "\x00\x00", None])
@pytest.mark.parametrize("half", ["state", "trainer"])
def test_a_pair_with_a_torn_or_missing_half_is_passed_over(
    tmp_path: Path, half: str, torn: str | None
) -> None:
    whole_pair(tmp_path, 4)
    newer = whole_pair(tmp_path, 8)
    victim = state_path(tmp_path, 8) if half == "state" else newer / "trainer_state.json"
    victim.unlink()
    if torn is not None:
        victim.write_text(torn)
    assert choose(tmp_path).path == tmp_path / "checkpoint-4"


def of_two_ranks(folder: Path, step: int) -> Path:
    """A whole pair as two processes write it under DeepSpeed."""
    trainers = whole_pair(folder, step)
    save_state(folder, step, {"batches": step, "processes": 2})
    (trainers / "latest").write_text(f"global_step{step}")
    (trainers / f"global_step{step}").mkdir()
    for rank in range(2):
        torch.save({}, trainers / f"rng_state_{rank}.pth")
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({}, trainers / f"global_step{step}" / name)
    return trainers


@pytest.mark.parametrize(
    "victim",
    [None, "rng_state_1.pth", "global_step8/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"],
)
@pytest.mark.parametrize("torn", [True, False])
def test_what_the_other_processes_write_must_be_whole(
    tmp_path: Path, victim: str | None, torn: bool
) -> None:
    of_two_ranks(tmp_path, 4)
    newer = of_two_ranks(tmp_path, 8)
    if victim is None:
        assert choose(tmp_path).path == newer
        return
    file = newer / victim
    content = file.read_bytes()
    file.unlink()
    if torn:
        file.write_bytes(content[: len(content) // 2])
    assert choose(tmp_path).path == tmp_path / "checkpoint-4"
    drop_torn(tmp_path)
    assert not newer.exists()


@pytest.mark.parametrize("name", ["pytorch_model_fsdp_0", "optimizer_0"])
def test_shards_without_their_metadata_are_torn(tmp_path: Path, name: str) -> None:
    folder = whole_pair(tmp_path, 4) / name
    folder.mkdir()
    assert choose(tmp_path).path is None
    (folder / ".metadata").write_bytes(b"whole")
    assert choose(tmp_path).path == folder.parent


def sealed_pair(folder: Path, step: int) -> Path:
    """A whole pair with its manifest."""
    trainers = whole_pair(folder, step)
    for name in ("model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt"):
        (trainers / name).write_bytes(name.encode() * 9)
    complete_checkpoint(folder, step)
    return trainers


def damage(file: Path, how: str) -> None:
    whole = file.read_bytes()
    file.unlink()
    if how != "missing":
        file.write_bytes({"emptied": b"", "halved": whole[: len(whole) // 2]}[how])


@pytest.mark.parametrize("how", ["emptied", "halved", "missing"])
@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt", "trainer_state.json",
        "../cotune-state-8.json", MANIFEST,
    ],
)  # fmt: skip
def test_the_newest_pair_whose_manifest_holds_is_taken(tmp_path: Path, name: str, how: str) -> None:
    sealed_pair(tmp_path, 4)
    newer = sealed_pair(tmp_path, 8)
    assert choose(tmp_path).notices == ()
    damage(newer / name, how)
    chosen = choose(tmp_path)
    if (name, how) == (MANIFEST, "missing"):  # as an earlier version left it
        assert chosen.path == newer
        (notice,) = chosen.notices
        assert notice.startswith("checkpoint-8 has no manifest (an earlier version, or a kill), so")
        return
    assert chosen.path == tmp_path / "checkpoint-4"
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
    checkpoint = sealed_pair(run.checkpoints_path, 4)
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


def test_only_trainer_folders_whose_save_was_cut_off_are_dropped(tmp_path: Path) -> None:
    """The trainer's rotation counts folders, whole or not, and would drop a whole one for them."""
    whole_pair(tmp_path, 4)
    (whole_pair(tmp_path, 6) / "trainer_state.json").write_text('{"glob')
    state_path(tmp_path, 4).unlink()  # the trainer's half of 4 is whole
    (tmp_path / "checkpoint-8").mkdir()  # none of ours: no state lies beside it
    (tmp_path / "checkpoint-notes").mkdir()
    drop_torn(tmp_path)
    names = sorted(p.name for p in tmp_path.glob("checkpoint-*"))
    assert names == ["checkpoint-4", "checkpoint-8", "checkpoint-notes"]


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
