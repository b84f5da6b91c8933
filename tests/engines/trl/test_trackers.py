"""What trackers get: real event files, W&B offline and trackio's own database; no network."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.trl.script_runs import ScriptTraining, begin, figures
from tests.forked import run_module
from tests.helpers import tensorboard_events


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptTraining]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
        folder = tmp_path_factory.mktemp("run")
        training = begin(folder, "inspo", report_to=["tensorboard"])
        training.trainer.train()
        yield training


def test_the_strategys_numbers_are_in_tensorboard_by_their_names(trained: ScriptTraining) -> None:
    events = tensorboard_events(trained.trainer.run_folder / "tensorboard")
    for name in ("inspo/best_weight", "inspo/evolution_accepted", "reward_mean"):
        written = [row[name] for row in figures(trained) if name in row]
        assert written
        seen = [entry.value for entry in events.Scalars(f"train/{name}")]
        assert seen == pytest.approx(written)


@pytest.mark.slow
def test_wandb_offline_and_trackio_get_numbers(tmp_path: Path) -> None:
    """In a process of its own: trackio reads where it writes when it is imported."""
    environment = {
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
    }
    arguments = ["--method", "p2o", "--output", tmp_path / "out"]
    arguments += ["--report-to", "wandb", "trackio"]
    done = run_module("tests.engines.trl.tracked_run", *arguments, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]

    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    with sqlite3.connect(tmp_path / "trackio" / "huggingface.db") as database:
        rows = [json.loads(row[0]) for row in database.execute("SELECT metrics FROM metrics")]
    (hard,) = [row for row in rows if "train/p2o/hard" in row]
    assert hard["train/p2o/hard"] > 0
