import os
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.errors import ConfigError
from cotune.run.json_files import json_line, plain, read_jsonl, write_atomic
from cotune.run.record import Record
from cotune.run.run_dir import read_summary, write_summary
from cotune.types import Assignment, Prompt, Task, Trajectory, Turn
from tests.helpers import make_trajectory, raises_line

CONFIG = {"name": "demo", "seed": 7, "limits": {"turns": 4}, "rewards": ("em", "f1")}


def make_rollout(trained: Prompt | None = None) -> Trajectory:
    """A rollout of two turns, of which the environment wrote two tokens."""
    prompt = Prompt("Search, then answer.")
    task = Task("q1", "Where is Wusu?", ("China",), "1 hop")
    return make_trajectory(
        Assignment(task, prompt, trained or prompt, "i3", 2),
        1.0,
        sampled_prompt_ids=(1, 2, 3),
        prompt_ids=(1, 2, 3) if trained is None else (1, 3),
        completion_ids=(4, 5, 6, 7),
        mask=(1, 0, 0, 1),
        turns=(
            Turn("<search>Wusu</search>", "<information>…</information>", "search"),
            Turn("<answer>China</answer>", "", "answer", "late"),
        ),
        answer="China",
    )


@pytest.fixture
def run(tmp_path: Path) -> Record:
    return Record.create(tmp_path / "run", CONFIG)


def test_what_is_written_is_read_back(run: Record) -> None:
    # The configuration.
    config = yaml.safe_load((run.path / "run.yaml").read_text())
    assert next(iter(config)) == "schema_version"
    assert config["schema_version"] == 1
    assert Record.open(run.path).read_config() == CONFIG | {"rewards": ["em", "f1"]}
    assert Record.is_run(run.path)
    assert not Record.is_run(run.path.parent)
    # Events and metrics, which are stamped.
    run.event("population", 3, members=[{"id": "i0", "weight": np.float32(0.5)}])
    run.metrics(3, {"reward": 0.25, "loss": float("nan"), "count": np.int64(4), "max": np.inf})
    (event,) = run.read_events()
    assert (event["kind"], event["step"], event["attempt"]) == ("population", 3, 1)
    assert event["time"] > 1.6e9
    assert event["members"] == [{"id": "i0", "weight": 0.5}]
    (row,) = run.read_metrics()
    values = {key: row[key] for key in ("step", "reward", "loss", "count", "max")}
    assert values == {"step": 3, "reward": 0.25, "loss": None, "count": 4, "max": None}
    # Trajectories, in full.
    run.rollouts(3, "train", [make_rollout()])
    run.rollouts(3, "train", [make_rollout(trained=Prompt("Search, then answer.", "hint"))])
    first, second = run.read_trajectories(3, "train")
    assert first == {
        "step": 3, "attempt": 1, "purpose": "train",
        "task": {"id": "q1", "question": "Where is Wusu?", "answers": ["China"],
                 "stratum": "1 hop"},
        "instruction": "i3", "group": 2,
        "sampled": {"instruction": "Search, then answer.", "hint": ""}, "trained": None,
        "turns": [
            {"text": "<search>Wusu</search>", "observation": "<information>…</information>",
             "action": "search", "error": ""},
            {"text": "<answer>China</answer>", "observation": "", "action": "answer",
             "error": "late"},
        ],
        "stop": "answered", "answer": "China", "reward": 1.0,
        "prompt_tokens": 3, "completion_tokens": 4, "generated_tokens": 2,
        "prompt_ids": [1, 2, 3], "trained_prompt_ids": None,
        "completion_ids": [4, 5, 6, 7], "mask": [1, 0, 0, 1],
    }  # fmt: skip
    assert second["trained_prompt_ids"] == [1, 3]
    assert second["trained"] == {"instruction": "Search, then answer.", "hint": "hint"}
    assert run.trajectory_files() == [(3, "train")]
    assert run.read_trajectories(3, "verify") == []


def test_create_refuses_a_folder_that_holds_something_and_leaves_it_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with raises_line(match=r"output: .*choose another output$"):
        Record.create(tmp_path, CONFIG)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    for path in (tmp_path / "mine.txt", tmp_path / "mine.txt" / "below" / "it"):
        with pytest.raises(ConfigError, match=r"^output: .*mine.txt is a file; choose another"):
            Record.create(path, CONFIG)
    # A trainer may have made its folder of checkpoints, which is empty before the run.
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    run = Record.create(tmp_path / "run", CONFIG)
    with raises_line(match=f"or resume the run: cotune resume {run.path}$"):
        Record.create(run.path, CONFIG)


def test_what_a_kill_while_a_run_was_created_left_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / ".run.yaml.71.tmp").write_text("name: of the first try")
    run = Record.create(path, CONFIG)
    assert Record.is_run(path)
    (path / "best").mkdir()
    (path / "best" / ".best.json.71.tmp").touch()
    run.cut_back(0)
    assert not list(path.rglob(".*.tmp"))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (None, r"not a run folder: there is no .*/run\.yaml; give"),
        ("schema_version: 2\n", "schema_version is 2, expected 1"),
    ],
    ids=["none", "version"],
)
def test_open_refuses_what_is_no_run_folder(run: Record, text: str | None, match: str) -> None:
    run.config_path.unlink()
    if text is not None:
        run.config_path.write_text(text)
    with raises_line(match=match):
        Record.open(run.path)


@pytest.mark.parametrize("value", [{1, 2}, Path("x"), b"x", object(), {1: 2}])
def test_what_json_cannot_hold_is_an_error_and_writes_nothing(run: Record, value: object) -> None:
    with pytest.raises(TypeError, match=r"event 'notice'\.text"):
        run.event("notice", 1, text=value)
    assert run.read_events() == []
    with pytest.raises(TypeError, match=r"event 'mine' has the field 'step', .*; rename it"):
        run.event("mine", 1, step=1)


def fill_run(run: Record) -> None:
    for step in range(1, 5):
        run.event("instruction_born", step, id=f"i{step}", text="t", parent=None)
        run.metrics(step, {"reward": step / 10})
        run.rollouts(step, "train", [make_rollout()])
    run.write_summary({"name": "demo"})


def test_cut_back_drops_later_steps_only_and_counts_attempts(run: Record) -> None:
    fill_run(run)
    (run.path / "checkpoints").mkdir()
    (run.path / "checkpoints" / "keep").write_text("x")
    rollout_bytes = (run.path / "trajectories" / "train-000002.jsonl").read_bytes()
    events = run.read_events()[:2]
    run.cut_back(2)
    assert run.read_events()[:2] == events
    last = run.read_events()[-1]
    assert (last["kind"], last["step"], last["attempt"]) == ("cut_back", 2, 2)
    assert [row["step"] for row in run.read_metrics()] == [1, 2]
    assert [row["id"] for row in run.read_instructions()] == ["i1", "i2"]
    assert run.trajectory_files() == [(1, "train"), (2, "train")]
    assert (run.path / "trajectories" / "train-000002.jsonl").read_bytes() == rollout_bytes
    assert (run.path / "checkpoints" / "keep").read_text() == "x"
    assert not [path for path in run.path.iterdir() if path.suffix == ".tmp"]
    # Attempts count up even when their lines are cut.
    fill_run(run)
    run.cut_back(3)
    again = Record.open(run.path)
    again.cut_back(1)
    assert all(row["step"] <= 1 for row in again.read_events())
    assert Record.open(run.path).attempt == again.attempt == 4


def test_summaries(run: Record, tmp_path: Path) -> None:
    # They count for the attempt that wrote them.
    assert run.read_summary() is None
    fill_run(run)
    assert run.read_summary() == {"schema_version": 1, "name": "demo", "attempt": 1}
    run.cut_back(2)
    assert run.read_summary() is None
    run.write_summary({"name": "demo"})
    assert Record.open(run.path).read_summary() == {
        "schema_version": 1, "name": "demo", "attempt": 2,
    }  # fmt: skip
    # Those of another format are refused.
    write_summary(tmp_path, {"arms": {}})
    assert read_summary(tmp_path) == {"schema_version": 1, "arms": {}}
    (tmp_path / "summary.json").write_text('{"schema_version": 9}')
    with pytest.raises(ConfigError, match="schema_version is 9"):
        read_summary(tmp_path)


@pytest.mark.parametrize("torn", [b'{"step": 9, "rew', b'{"step": 9}', b"\xe2\x80"])
def test_a_torn_last_line_is_skipped_then_removed(run: Record, torn: bytes) -> None:
    run.metrics(1, {"reward": 0.5})
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    again = Record.open(run.path)
    assert [row["step"] for row in again.read_metrics()] == [1]
    again.metrics(2, {"reward": 0.6})
    assert [row["step"] for row in again.read_metrics()] == [1, 2]
    assert torn not in (run.path / "metrics.jsonl").read_bytes()
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    again.cut_back(2)
    assert torn not in (run.path / "metrics.jsonl").read_bytes()


def test_a_broken_line_that_was_finished_is_an_error_with_its_place(run: Record) -> None:
    (run.path / "events.jsonl").write_text('{"step": 1}\n{"st\n{"step": 2}\n')
    with pytest.raises(ConfigError, match=r"events\.jsonl, line 2: not JSON"):
        run.read_events()


def test_write_atomic_leaves_the_old_file_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    write_atomic(path, "old")

    def refuse(*_: object) -> None:
        raise OSError("disk")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk"):
        write_atomic(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, width=32)
    .filter(lambda x: abs(x) != float("inf")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(rows=st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=4))
def test_lines_round_trip_whatever_the_text(
    rows: list[dict[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    path.write_bytes(b"".join(json_line(row, "row") for row in rows))
    assert read_jsonl(path) == rows == plain(rows, "rows")
    assert [type(value) for value in plain((1, True, np.int64(2), 0.5), "x")] == [
        int,
        bool,
        int,
        float,
    ]
