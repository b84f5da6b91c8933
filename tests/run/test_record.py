"""The record of a run: opened by a script, followed by listeners, silent on other ranks."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cotune.errors import ConfigError
from cotune.run.console import LogListener
from cotune.run.record import Record
from cotune.run.run_dir import RunDir
from cotune.types import Assignment, Prompt
from tests.helpers import make_tasks, make_trajectory

CONFIG = {"library": "trl", "name": "mine", "seed": 0, "steps": 4}


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    folder = tmp_path / "cotune"
    made = Record(folder, CONFIG, fixed=["seed"], listeners=[LogListener()], total_steps=4)
    yield made
    made.close()


@pytest.mark.parametrize(("every", "kept"), [(4, [1, 4, 8, 9]), (0, [])])
def test_which_training_rollouts_are_kept(tmp_path: Path, every: int, kept: list[int]) -> None:
    record = Record.create(tmp_path / "run", {}, rollouts_every=every, total_steps=9)
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
    class Fails:
        def event(self, *_: object) -> None:
            raise AssertionError

        metrics = event

    folder = None if path is None else tmp_path / path
    silent = Record(folder, silent=path is not None, listeners=[Fails()])
    silent.begin_attempt(None)
    silent.event("notice", 1, text="x")
    silent.metrics(1, {"reward_mean": 1.0})
    silent.rollouts(1, "train", [])
    silent.set_step(3)
    silent.count("train", 8, 80)
    assert silent.totals().rollouts["train"] == 8
    silent.cut_back(1)
    assert silent.totals().rollouts["train"] == 0
    assert (silent.read_events(), silent.read_metrics(), silent.read_summary()) == ([], [], None)
    assert list(tmp_path.iterdir()) == []


def test_a_trainer_may_have_made_its_folder_of_checkpoints(record: Record) -> None:
    (record.path / "checkpoints").mkdir(parents=True)
    record.begin_attempt(None)
    assert RunDir.is_run(record.path)
    other = record.path.parent / "other"
    (other / "checkpoints" / "checkpoint-3").mkdir(parents=True)
    with pytest.raises(ConfigError, match="is not an empty folder"):
        Record(other, CONFIG).begin_attempt(None)


def test_nothing_is_written_before_training(record: Record, tmp_path: Path) -> None:
    record.event("saved", 0)
    record.metrics(0, {"loss": 1.0})
    record.rollouts(0, "train", [])
    record.set_step(1)
    record.count("evaluate", 3, 10)
    assert list(tmp_path.iterdir()) == []


def log_a_loss(record: Record) -> None:
    record.metrics(1, {"loss": 1.0})


def save(record: Record) -> None:
    record.event("saved", 1)


def roll_out_twice(record: Record) -> None:
    for step in (1, 2):
        record.set_step(step)
        record.count("train", 8, 80)


@pytest.mark.parametrize("trained", [log_a_loss, save, roll_out_twice])
def test_a_folder_is_begun_once(record: Record, trained: Callable[[Record], None]) -> None:
    assert record.begin_attempt(None) == 1
    trained(record)
    before = {path: path.read_bytes() for path in record.path.iterdir()}
    with pytest.raises(ConfigError, match=r"resume_from_checkpoint=True.*output_dir"):
        record.begin_attempt(None)
    assert {path: path.read_bytes() for path in record.path.iterdir()} == before


def test_what_is_in_the_way_is_named(record: Record, tmp_path: Path) -> None:
    (tmp_path / "cotune").write_text("a file", encoding="utf-8")
    with pytest.raises(ConfigError, match="is a file"):
        record.begin_attempt(None)


def test_two_processes_do_not_train_in_one_folder(record: Record, tmp_path: Path) -> None:
    record.begin_attempt(None)
    code = f"from pathlib import Path\nfrom cotune.run.locks import run_locked\nwith run_locked(Path({str(tmp_path / 'cotune')!r})): pass"

    def other() -> str:
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        ).stderr

    assert "is being trained by another process" in other()
    assert record.begin_attempt(None) == 2  # this one may begin again: nothing was trained
    record.close()
    assert not other()
    record.event("evaluated", 4, em=0.5)  # what follows the end is recorded too
    assert record.read_events()[-1]["kind"] == "evaluated"


def test_a_resume_goes_on_in_its_folder(record: Record, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run folder is not there"):
        record.begin_attempt(2)
    record.begin_attempt(None)
    for step in (1, 2, 3):
        record.set_step(step)
        record.metrics(step, {"loss": float(step)})
        record.count("train", 8, 80)
    assert record.begin_attempt(2) == 2
    kept = RunDir.open(record.path)
    assert [row["step"] for row in kept.read_metrics()] == [1, 2]
    assert kept.totals().rollouts["train"] == record.totals().rollouts["train"] == 16


def test_a_resume_with_other_settings_is_refused(record: Record) -> None:
    record.begin_attempt(None)
    record.count("train", 8, 80)
    other = Record(record.path, CONFIG | {"seed": 5}, fixed=["seed"])
    with pytest.raises(ConfigError, match=r"seed is 5, but the run in .* was started with 0"):
        other.begin_attempt(1)
    longer = Record(record.path, CONFIG | {"steps": 99}, fixed=["seed"])
    assert longer.begin_attempt(1) == 2


def test_what_is_said_is_one_line_of_text(record: Record, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "cotune")
    record.begin_attempt(None)
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
