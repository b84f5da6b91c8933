"""Only whole checkpoints are resumed from."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from cotune.engines.run_start import choose_checkpoint
from cotune.engines.trl import trl_joint
from cotune.engines.trl.joint_trainer import TRLBest
from cotune.errors import ConfigError
from cotune.run.best import BestRecord
from cotune.run.checkpoints import Chosen, complete_checkpoints, newest_undamaged, save_state
from cotune.run.record import Record
from tests.engines.trl.setup import Run, start
from tests.helpers import WAITING
from tests.policy.tiny import tiny_tokenizer

SAVING = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2, "remembers": True}
TIME_LIKE = {"step_time", "time", "attempt", *WAITING}


def choose(folder: Path) -> Chosen:
    return newest_undamaged(complete_checkpoints(folder))


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


def test_the_checkpoint_before_stays_until_the_next_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete: list[list[str]] = []

    def save(checkpoint: Path, state: Any) -> None:
        complete.append([path.name for path in complete_checkpoints(checkpoint.parent)])
        save_state(checkpoint, state)

    monkeypatch.setattr(trl_joint, "save_state", save)
    start(tmp_path, **SAVING | {"save_total_limit": 1}, max_steps=3).trainer.train()
    assert complete == [[], ["checkpoint-1"], ["checkpoint-2"]]
    assert [path.name for path in (tmp_path / "checkpoints").glob("checkpoint-*")] == [
        "checkpoint-3"
    ]


def test_what_a_resume_needs_is_checked_and_left_as_it_is(tmp_path: Path) -> None:
    run = Record.create(tmp_path / "run", {"name": "x"})
    run.event("run_started", 0)
    checkpoint = run.checkpoints_path / "checkpoint-4"
    checkpoint.mkdir(parents=True)
    (checkpoint / "optimizer.pt").write_bytes(b"moments")
    save_state(checkpoint, {"batches": 4})
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


def numbers(run: Run) -> list[dict[str, Any]]:
    rows = run.folder.read_metrics()
    return [{k: v for k, v in row.items() if k not in TIME_LIKE} for row in rows]
