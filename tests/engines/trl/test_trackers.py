"""What trackers get: real event files, W&B offline and trackio's own database; no network."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.integrations.integration_utils import WandbCallback

from cotune.engines.trl import trackers
from cotune.engines.trl.trackers import COLUMNS, instruction_table
from tests.engines.trl.script_runs import ScriptTraining, begin, figures
from tests.forked import run_module
from tests.helpers import tensorboard_events


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptTraining]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
        folder = tmp_path_factory.mktemp("run")
        training = begin(folder, "inspo+p2o", report_to=["tensorboard"])
        training.trainer.train()
        yield training


def test_the_strategys_numbers_are_in_tensorboard_by_their_names(trained: ScriptTraining) -> None:
    events = tensorboard_events(trained.trainer.run_folder / "tensorboard")
    for name in ("inspo/best_weight", "p2o/hard", "reward_mean", "hinted_share"):
        written = [row[name] for row in figures(trained) if name in row]
        assert written
        seen = [entry.value for entry in events.Scalars(f"train/{name}")]
        assert seen == pytest.approx(written)


def test_the_table_has_the_lineage_the_living_and_the_best(trained: ScriptTraining) -> None:
    strategy = trained.strategy
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in instruction_table(trained.run)]
    lineage = trained.run.read_instructions()
    assert [(row["id"], row["parent"], row["text"]) for row in rows] == [
        (one["id"], one["parent"], one["text"]) for one in lineage
    ]
    alive = {row["id"] for row in rows if row["alive"]}
    assert alive == {member.id for member in strategy.base.population.members}
    assert [row["id"] for row in rows if row["best"]] == [strategy.best_instruction_id()]


def test_wandb_without_a_run_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Table:
        def __init__(self, columns: list[str], data: list[list[Any]]) -> None:
            self.columns, self.data = columns, data

    logged: list[dict[str, Any]] = []
    fake = SimpleNamespace(run=None, Table=Table, log=logged.append)
    monkeypatch.setattr(trackers, "import_module", lambda name: {"wandb": fake}[name])
    rows = [["i0", None, "initial", 0, True, None, True, "Say it."]]
    callback = WandbCallback.__new__(WandbCallback)
    trackers.log_table(callback, rows, 4)
    assert logged == []
    fake.run = object()
    trackers.log_table(callback, rows, 4)
    (row,) = logged
    assert row["train/global_step"] == 4
    assert row["cotune/instructions"].columns == list(COLUMNS)
    assert row["cotune/instructions"].data == rows


@pytest.mark.slow
def test_wandb_offline_and_trackio_get_tables_and_numbers(tmp_path: Path) -> None:
    """In a process of its own: trackio reads where it writes when it is imported."""
    environment = {
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
    }
    arguments = ["--method", "inspo+p2o", "--output", tmp_path / "out"]
    arguments += ["--report-to", "wandb", "trackio"]
    done = run_module("tests.engines.trl.tracked_run", *arguments, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]

    files = list((tmp_path / "wandb").glob("*/files/media/table/cotune/instructions_*.table.json"))
    newest = max(files, key=lambda path: int(path.name.split("_")[1]))
    shown = json.loads(newest.read_text(encoding="utf-8"))
    assert shown["columns"] == list(COLUMNS)
    assert len(shown["data"]) >= 1

    with sqlite3.connect(tmp_path / "trackio" / "huggingface.db") as database:
        rows = [json.loads(row[0]) for row in database.execute("SELECT metrics FROM metrics")]
    tables = [row["cotune/instructions"] for row in rows if "cotune/instructions" in row]
    assert tables[-1]["_value"][0]["id"] == "i0"
    (hard,) = [row for row in rows if "train/p2o/hard" in row]
    assert hard["train/p2o/hard"] > 0
