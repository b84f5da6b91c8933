"""Data frames of run folders: columns, types and values."""

from dataclasses import asdict
from pathlib import Path

import pytest

import cotune
from cotune.run.lineage import instruction_rows
from cotune.run.record import Record
from cotune.run.run_dir import RunDir
from cotune.types import Prompt
from tests.run.test_run_dir import make_trajectory


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record.create(tmp_path / "run", {"name": "demo"})


@pytest.fixture
def run(record: Record) -> RunDir:
    return cotune.open_run(str(record.path))


def test_a_run_without_files_has_empty_frames(run: RunDir) -> None:
    for frame in (
        run.metrics_frame(), run.events_frame("notice"), run.instructions_frame(), run.trajectories_frame(),
        run.costs_frame(),
    ):  # fmt: skip
        assert len(frame) == 0
    assert [path.name for path in run.path.iterdir()] == ["run.yaml"], "reading wrote something"


def test_metrics_keep_every_number(run: RunDir, record: Record) -> None:
    record.metrics(1, {"reward_mean": 0.25, "loss": float("nan")})
    record.metrics(2, {"reward_mean": 0.5, "inspo/best_weight": 2})
    frame = run.metrics_frame()
    assert list(frame["reward_mean"]) == [0.25, 0.5]
    assert frame["loss"].isna().to_list() == [True, True]
    assert frame["inspo/best_weight"].isna().tolist() == [True, False]
    written = [row["time"] for row in run.read_metrics()]
    assert [round(t.timestamp(), 3) for t in frame["time"]] == written


def test_events_of_a_kind_have_its_columns(run: RunDir, record: Record) -> None:
    for parent in (None, "i0"):
        record.event(
            "instruction_born", 3, id=f"i{int(parent is not None)}", text="Do.", parent=parent
        )
    record.event("notice", 4, text="x", by_stratum={"1 hop": [0.5, 8]})
    frame = run.events_frame("notice")
    assert "parent" not in frame
    assert frame["by_stratum"].tolist() == [{"1 hop": [0.5, 8]}]
    assert run.events_frame()["kind"].tolist() == ["instruction_born"] * 2 + ["notice"]
    instructions = run.instructions_frame()
    assert instructions.columns.tolist() == list(asdict(instruction_rows(run)[0]))
    assert instructions["parent"].isna().tolist() == [True, False]


def test_trajectories_are_chosen_by_step_and_purpose(run: RunDir, record: Record) -> None:
    hinted = make_trajectory(trained=Prompt("Search, then answer."))
    for step, purpose in (
        (1, "train"),
        (2, "evaluate_before"),
        (2, "evaluate_after"),
        (2, "train"),
    ):
        record.rollouts(step, purpose, [make_trajectory(), hinted])
    frame = run.trajectories_frame()
    assert len(frame) == 8
    first = frame.iloc[0]
    assert (first["task_id"], first["task_answers"]) == ("q1", ["China"])
    assert first["completion_ids"] == [4, 5, 6, 7]
    assert first["turns"][1]["error"] == "late"
    assert first["trained"] is None

    def chosen(**wanted: object) -> list[tuple[int, str]]:
        found = run.trajectories_frame(**wanted)  # type: ignore[arg-type]
        return [] if found.empty else sorted(set(zip(found["step"], found["purpose"], strict=True)))

    assert chosen(step=1) == [(1, "train")]
    assert chosen(purpose="train") == [(1, "train"), (2, "train")]
    assert chosen(purpose="evaluate") == [(2, "evaluate_after"), (2, "evaluate_before")]
    assert chosen(step=2, purpose="evaluate_after") == [(2, "evaluate_after")]
    assert chosen(purpose="eval") == chosen(step=9) == []


def test_costs_are_rows_with_all_columns(run: RunDir, record: Record) -> None:
    record.begin_attempt(None)
    record.step = 2
    record.count("train", 8, 200, 1.5)
    record.charge("m", prompt_tokens=10, completion_tokens=5, money=0.25, error="odd")
    record.begin_attempt(1)
    frame = run.costs_frame()
    found = [dict(zip(frame.columns, row, strict=True)) for row in frame.itertuples(index=False)]
    assert found == [asdict(row) for row in record.read_costs()]
    assert frame["committed"].tolist() == [False, False]
