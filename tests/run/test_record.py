"""The record of a run: resumed, followed by listeners, silent on other ranks."""

from pathlib import Path
from typing import Any

import pytest

from cotune.errors import ConfigError
from cotune.run.events import RunDisplay
from cotune.run.record import Record
from cotune.run.run_dir import RunDir
from cotune.types import Assignment, Prompt
from tests.helpers import make_tasks, make_trajectory

CONFIG = {"library": "trl", "name": "mine", "seed": 0, "steps": 4}


@pytest.mark.parametrize(("every", "kept"), [(4, [1, 4, 8, 9]), (0, [])])
def test_which_training_rollouts_are_kept(tmp_path: Path, every: int, kept: list[int]) -> None:
    record = Record.create(tmp_path / "run", {})
    record.rollouts_every, record.total_steps = every, 9
    prompt = Prompt("Do.")
    rollout = make_trajectory(Assignment(make_tasks(1)[0], prompt, prompt, "i0", 0), 1.0)
    for step in range(1, 10):
        record.rollouts(step, "train", [rollout])
    record.rollouts(3, "evaluate_during", [rollout])
    files = record.trajectory_files()
    assert [step for step, purpose in files if purpose == "train"] == kept
    assert (3, "evaluate_during") in files


@pytest.mark.parametrize("path", [None, "cotune"])
def test_a_silent_record_writes_nothing_and_counts(tmp_path: Path, path: str | None) -> None:
    folder = None if path is None else tmp_path / path
    listener: Any = None  # which fails when it is called
    silent = Record(folder, silent=path is not None)
    silent.listeners = [listener]
    silent.begin_attempt(None)
    silent.event("notice", 1, text="x")
    silent.metrics(1, {"reward_mean": 1.0})
    silent.rollouts(1, "train", [])
    silent.step = 3
    silent.count("train", 8, 80)
    assert silent.totals().rollouts["train"] == 8
    silent.cut_back(1)
    assert silent.totals().rollouts["train"] == 0
    assert (silent.read_events(), silent.read_metrics(), silent.read_summary()) == ([], [], None)
    assert list(tmp_path.iterdir()) == []


def test_a_trainer_may_have_made_its_folder_of_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert RunDir.is_run(Record.create(tmp_path / "run", CONFIG).path)
    (tmp_path / "other" / "checkpoints" / "checkpoint-3").mkdir(parents=True)
    with pytest.raises(ConfigError, match="is not an empty folder"):
        Record.create(tmp_path / "other", CONFIG)


def test_what_is_said_is_one_line_of_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "cotune")
    record = Record.create(tmp_path / "run", CONFIG)
    record.listeners = [RunDisplay()]
    hostile = "[red]Search[/red]\n\x1b[31mthen\u202e answer"
    record.event("instruction_born", 1, id="i1", origin="rewrite", text=hostile, score=None)
    record.event("notice", 1, text="population of 2")
    record.event("hint_progress", 2, evaluations=3, budget=9, hints=2, best_mean_dev_score=0.5)
    record.event("population", 2, members=[])
    said = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "cotune"]
    assert said == [
        ("INFO", "step 1: + i1 (rewrite): [red]Search[/red] [31mthen answer"),
        ("WARNING", "step 1: population of 2"),
        ("DEBUG", "step 2: hints: 3/9 evaluations, 1 hints, best 0.50"),
    ]
