"""What trackers get of a script: real event files, W&B offline and trackio's own database; no network."""

import json
import sqlite3
from pathlib import Path

import pytest

import cotune
from tests.forked import run_module
from tests.helpers import tensorboard_events


@pytest.mark.slow
def test_the_example_with_hints_and_what_trackers_get_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own: trackio reads where it writes when it is imported."""
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    environment = {
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
    }
    # With this seed and world P²O accepts a hint in its first phase.
    arguments = ["--method", "p2o", "--steps", "3", "--seed", "0", "--output", tmp_path / "out"]
    arguments += ["--report-to", "wandb", "trackio", "tensorboard"]
    done = run_module("tests.engines.trl.tracked_run", *arguments, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]

    run = cotune.open_run(tmp_path / "out" / "cotune")
    assert "best hint: " in done.stdout
    kinds = [event["kind"] for event in run.read_events()]
    assert kinds.count("hint_phase_ended") == 1  # an epoch is two steps; none after the last
    spent = run.totals().rollouts
    assert spent["train"] == 3 * 8
    assert 0 < spent["evolve"] <= 16 + 1

    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    with sqlite3.connect(tmp_path / "trackio" / "huggingface.db") as database:
        rows = [json.loads(row[0]) for row in database.execute("SELECT metrics FROM metrics")]
    (hard,) = [row for row in rows if "train/p2o/hard" in row]
    assert hard["train/p2o/hard"] > 0
    events = tensorboard_events(run.path / "tensorboard")
    for name in ("p2o/hard", "hinted_share", "reward_mean"):
        written = [row[name] for row in run.read_metrics() if name in row]
        assert written
        seen = [entry.value for entry in events.Scalars(f"train/{name}")]
        assert seen == pytest.approx(written)
