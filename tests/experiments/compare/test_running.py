"""The command: what it writes and shows, its folder, its exit status, a kill and what follows."""

import json
import signal
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch

from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError, Stopped
from cotune.experiments.chains import ChainsFailed
from cotune.experiments.compare.running import compare
from cotune.policy.local_policy import load
from cotune.run.json_files import read_jsonl
from cotune.run.record import Record
from cotune.run.run_dir import read_summary
from tests.experiments.compare.folders import HALF, Start, finish, good, output_of, suite_file
from tests.forked import run_module
from tests.helpers import is_locked
from tests.policy.tiny import small_policy

FORKED_COMPARE = "tests.experiments.compare.forked_compare"


def run(file: Path) -> str:
    return output_of(lambda console: compare(file, console))


def test_summary_and_report_are_written(tmp_path: Path, start: Start) -> None:
    start(good)
    out = run(suite_file(tmp_path, caption="Of two methods."))
    assert "inspo, seed 0: train begins" in out
    assert "inspo, seed 1: done (4 of 4)" in out
    assert "INSPO" in out
    assert "Of two methods." in out
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert [row["status"] for row in summary["methods"]] == ["ok", "ok"]
    assert summary["verdict"] in out.replace("\n", " ")
    page = (tmp_path / "out/report.html").read_text()
    assert "GRPO" in page
    assert "Of two methods." in page


@pytest.mark.parametrize(
    ("rollouts", "status", "problem"),
    [
        (0, "failed", "INSPO: seed 0: failed: stage train, status 1: ValueError: it broke"),
        (80, "unequal", "INSPO: paid 80 policy rollouts; its compute class 1x allows 38 to 42"),
    ],
)
def test_a_failure_is_told_after_the_others_are_reported(
    rollouts: int, status: str, problem: str, tmp_path: Path, start: Start
) -> None:
    def outcome(config: RunConfig, words: Any) -> int:
        if config.strategy.kind == "static":
            return good(config)
        if rollouts:
            finish(config, HALF, {"train": rollouts})
        return int(not rollouts)

    start(outcome)
    with pytest.raises(ChainsFailed) as error:
        run(suite_file(tmp_path))
    assert str(error.value).startswith(f"1 of 2 methods are not in the comparison: {problem}")
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert [row["status"] for row in summary["methods"]] == ["ok", status]
    assert summary["methods"][0]["score"]["mean"] == 0.5
    assert problem.removeprefix("INSPO: ") in (tmp_path / "out/report.html").read_text()


def test_ctrl_c_leaves_what_is_there(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome(config: RunConfig, words: Any) -> int:
        if config.strategy.kind == "inspo":
            raise KeyboardInterrupt
        return good(config)

    start(outcome)
    file = suite_file(tmp_path, at_once=1)
    monkeypatch.setattr("sys.argv", ["cotune", "compare", str(file), "--set", "seeds=[0, 1]"])
    again = f"stopped; resume with: cotune compare {file} --set 'seeds=\\[0, 1\\]'"
    with pytest.raises(Stopped, match=again):
        run(file)
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert [row["status"] for row in summary["methods"]] == ["unfinished", "unfinished"]
    processes = start(good)
    run(file)
    assert len(processes.started) == 3


def test_a_folder_that_holds_something_else_is_not_touched(tmp_path: Path, start: Start) -> None:
    start(good)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match="holds something else; choose another folder"):
        run(suite_file(tmp_path))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]
    with pytest.raises(ConfigError, match="is a file; choose another folder"):
        run(suite_file(tmp_path, output=str(tmp_path / "suite.yaml")))


def test_a_running_suite_is_reported_so_far(tmp_path: Path, start: Start) -> None:
    """INSPO fails at seed 0; at seed 1 it runs while the page is asked for."""
    out, pages = tmp_path / "out", list[str]()

    def outcome(config: RunConfig, words: Any) -> int:
        if config.strategy.kind != "inspo":
            return good(config)
        if config.seed == 1:
            pages.append((out / "report.html").read_text())
        return 1

    start(outcome)
    with pytest.raises(ChainsFailed):
        run(suite_file(tmp_path, at_once=1, seeds=[0, 1, 2]))
    assert "2 of 2 methods have no complete or comparable result." in pages[0]
    assert "GRPO (unfinished): seed 2: not begun</li>" in pages[0]
    assert "INSPO (failed): seed 0: failed: stage train, status 1: " in pages[0]
    # Written when a run ends.
    assert "seed 1: not begun; seed 2: not begun</li>" in pages[0]
    assert '<meta http-equiv="refresh"' in pages[0]
    assert '<meta http-equiv="refresh"' not in (out / "report.html").read_text()


def test_the_page_shows_the_stage_that_a_row_is_at(tmp_path: Path, start: Start) -> None:
    """It is there from the start, and written again when a later stage begins."""
    pages: list[str] = []

    def outcome(config: RunConfig, words: Any) -> int:
        pages.append((tmp_path / "out/report.html").read_text())
        return good(config)

    start(outcome)
    methods = ["prompt-before-rl"]
    file = suite_file(tmp_path, seeds=[0], budget=80, methods=methods, baseline=methods[0])
    run(file)
    assert "seed 0: begun, prompt</li>" in pages[0]
    assert "seed 0: begun, train</li>" in pages[1]


def test_no_key_of_a_run_file_gets_into_the_folder(tmp_path: Path, start: Start) -> None:
    start(good)
    misplaced = {"llm": {"api_key": "sk-misplaced"}}
    with pytest.raises(ConfigError):
        run(suite_file(tmp_path, methods=[{"method": "grpo", "set": misplaced}], seeds=[0]))
    file = suite_file(tmp_path, methods=["grpo"], seeds=[0])
    file.write_text(file.read_text().replace("base:", "base:\n  llm: {api_key: sk-misplaced}"))
    run(file)  # of no use to GRPO, and so not looked at
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files
    assert not any(b"sk-misplaced" in path.read_bytes() for path in files)


def test_two_do_not_work_on_one_folder(tmp_path: Path, start: Start) -> None:
    errors: list[str] = []

    def outcome(config: RunConfig, words: Any) -> int:
        if not errors:
            with pytest.raises(ConfigError) as error:
                run(tmp_path / "suite.yaml")
            errors.append(str(error.value))
        return good(config)

    start(outcome)
    run(suite_file(tmp_path))
    assert errors == [
        f"output: {tmp_path / 'out'} is being worked on by another cotune compare; wait for it, or "
        "stop it"
    ]


@pytest.mark.slow
def test_a_killed_suite_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    steps = {"training.steps": 5, "training.save_every": 1}
    short = {"limits.turns": 1, "limits.turn_tokens": 8}
    changes = {**steps, **short, "policy.path": small_policy()}
    file = suite_file(tmp_path, set=changes, seeds=[0], at_once=1)
    finished, running = (tmp_path / f"out/{name}/seed-0/train" for name in ("grpo", "inspo"))
    killed = run_module(FORKED_COMPARE, file, running)
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    mtimes = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    # The system ends the orphan, which also holds the suite's lock: it was forked.
    while any(map(is_locked, (running / "run.lock", tmp_path / "out/suite.lock"))):
        sleep(0.02)
    assert read_summary(running) is None
    resumed = run_module(FORKED_COMPARE, file)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert {path: path.stat().st_mtime_ns for path in mtimes} == mtimes
    events = read_jsonl(running / "events.jsonl")
    assert "resumed" in {event["kind"] for event in events}
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert [row["status"] for row in summary["methods"]] == ["ok", "ok"]
    rollouts = [row["costs"]["rollouts"] for row in summary["methods"]]
    assert rollouts == [40, 38]  # no batch more for INSPO


@pytest.mark.slow
def test_a_stage_after_an_adapter_starts_from_merged_weights(tmp_path: Path) -> None:
    short = {"limits.turns": 1, "limits.turn_tokens": 8, "training.save_every": 1}
    changes = {**short, "policy": {"path": small_policy(), "lora": {"rank": 2}}}
    rows = {"methods": ["prompt-after-rl"], "baseline": "prompt-after-rl"}
    file = suite_file(tmp_path, set=changes, seeds=[0], budget=32, **rows)
    completed = run_module(FORKED_COMPARE, file)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    trained = tmp_path / "out/prompt-after-rl/seed-0/train"
    searched = tmp_path / "out/prompt-after-rl/seed-0/prompt"
    start = Path(Record.open(searched).read_config()["policy"]["path"])
    assert start.parent == trained
    assert (trained / "best/adapter_config.json").exists()
    assert not (start / "adapter_config.json").exists()
    merged, _ = load(trained / "best", merge=True)
    weights, _ = load(start)
    for name, weight in merged.state_dict().items():
        assert torch.equal(weights.state_dict()[name], weight), name
