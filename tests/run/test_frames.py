"""Data frames of run folders: columns, types and values, of full, empty and growing runs."""

from dataclasses import asdict
from pathlib import Path

import pytest

import cotune
from cotune.errors import ConfigError
from cotune.run.lineage import instruction_rows
from cotune.run.record import Record
from cotune.run.run_dir import RunDir, open_run
from cotune.types import Prompt
from tests.run.test_run_dir import make_trajectory


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record.create(tmp_path / "run", {"name": "demo"})


@pytest.fixture
def empty(record: Record) -> RunDir:
    return open_run(record.path)


def test_a_run_without_files_has_empty_frames(empty: RunDir) -> None:
    for frame in (
        empty.metrics_frame(), empty.events_frame(), empty.events_frame("notice"),
        empty.instructions_frame(), empty.trajectories_frame(), empty.costs_frame(),
    ):  # fmt: skip
        assert len(frame) == 0
    assert [path.name for path in empty.path.iterdir()] == ["run.yaml"], "reading wrote something"


def test_open_run_reads_a_folder_and_refuses_another(tmp_path: Path, empty: RunDir) -> None:
    assert cotune.open_run is open_run
    assert isinstance(cotune.open_run(str(empty.path)), cotune.RunDir)
    with pytest.raises(ConfigError, match=r"not a run folder"):
        open_run(tmp_path)


def test_metrics_keep_every_number(empty: RunDir, record: Record) -> None:
    record.metrics(1, {"reward_mean": 0.25, "loss": float("nan"), "optimizer_step": 1.0})
    record.metrics(2, {"reward_mean": 0.5, "inspo/best_weight": 2, "optimizer_step": 2.0})
    frame = empty.metrics_frame()
    assert list(frame["reward_mean"]) == [0.25, 0.5]
    assert list(frame["optimizer_step"]) == [1, 2]
    assert frame["loss"].isna().to_list() == [True, True]
    assert frame["inspo/best_weight"].isna().tolist() == [True, False]
    written = [row["time"] for row in empty.read_metrics()]
    assert [round(t.timestamp(), 3) for t in frame["time"]] == written


def test_events_of_a_kind_have_its_columns(empty: RunDir, record: Record) -> None:
    record.event("evaluated", 3, split="test", when="after", prompt="best", instruction_id="i1",
                trained=2, em=0.5, n=8, by_stratum={"1 hop": [0.5, 8]})  # fmt: skip
    record.event("evaluated", 4, split="test", em=None)
    record.event("notice", 4, text="x")
    frame = empty.events_frame("evaluated")
    assert "text" not in frame
    assert frame["n"].isna().tolist() == [False, True]
    assert frame["em"].isna().tolist() == [False, True]
    assert frame["by_stratum"].tolist()[0] == {"1 hop": [0.5, 8]}
    everything = empty.events_frame()
    assert everything["kind"].tolist() == ["evaluated", "evaluated", "notice"]
    assert everything["text"].tolist()[2] == "x"


def test_instructions_are_the_rows_of_the_lineage(empty: RunDir, record: Record) -> None:
    for number, parent in ((0, None), (1, "i0")):
        record.event("instruction_born", number, id=f"i{number}", text="Do.", parent=parent)
    rows = [asdict(row) for row in instruction_rows(empty)]
    frame = empty.instructions_frame()
    assert frame.columns.tolist() == list(rows[0])
    assert frame["id"].tolist() == ["i0", "i1"]
    assert frame["parent"].isna().tolist() == [True, False]


def test_trajectories_are_chosen_by_step_and_purpose(empty: RunDir, record: Record) -> None:
    hinted = make_trajectory(trained=Prompt("Search, then answer."))
    for step, purpose in (
        (1, "train"),
        (2, "evaluate_before"),
        (2, "evaluate_after"),
        (2, "train"),
    ):
        record.rollouts(step, purpose, [make_trajectory(), hinted])
    frame = empty.trajectories_frame()
    assert len(frame) == 8
    first = frame.iloc[0]
    assert (first["task_id"], first["task_question"], first["task_answers"]) == (
        "q1", "Where is Wusu?", ["China"],
    )  # fmt: skip
    assert first["completion_ids"] == [4, 5, 6, 7]
    assert first["turns"][1]["error"] == "late"
    assert (first["reward"], first["answer"], first["stop"]) == (1.0, "China", "answered")
    assert first["trained"] is None

    def chosen(**wanted: object) -> list[tuple[int, str]]:
        found = empty.trajectories_frame(**wanted)  # type: ignore[arg-type]
        return [] if found.empty else sorted(set(zip(found["step"], found["purpose"], strict=True)))

    assert chosen(step=1) == [(1, "train")]
    assert chosen(purpose="train") == [(1, "train"), (2, "train")]
    assert chosen(purpose="evaluate") == [(2, "evaluate_after"), (2, "evaluate_before")]
    assert chosen(step=2, purpose="evaluate_after") == [(2, "evaluate_after")]
    assert chosen(purpose="eval") == chosen(step=9) == []


def test_costs_are_rows_with_all_columns(empty: RunDir, record: Record) -> None:
    record.begin_attempt(None)
    record.step = 1
    record.count("train", 8, 200, 1.5)
    record.charge("m", prompt_tokens=10, completion_tokens=5, money=0.25, error="odd")
    record.step = 2
    record.count("verify", 4, 50)
    frame = empty.costs_frame()
    found = [dict(zip(frame.columns, row, strict=True)) for row in frame.itertuples(index=False)]
    assert found == [asdict(row) for row in record.read_costs()]
    record.begin_attempt(1)
    assert empty.costs_frame()["committed"].tolist() == [True, True, False]
