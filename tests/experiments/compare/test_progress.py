"""A suite that is not finished, read: while it runs, after a kill, with failures."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cotune.cli.app import app
from cotune.config.run_file import RunConfig, dump_config
from cotune.errors import ConfigError
from cotune.experiments.compare import cells
from cotune.experiments.compare.progress import is_worked_on, summary_so_far
from cotune.experiments.compare.running import SuiteFailed, compare
from cotune.experiments.compare.suite_summary import SuiteSummary
from cotune.run.run_dir import RunDir
from tests.experiments.compare.folders import Processes, good, suite_file


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for processes that are none."""
    monkeypatch.setattr(cells.time, "sleep", lambda _: None)


def run(file: Path) -> None:
    compare(file, Console(file=io.StringIO(), width=150))


def report(folder: Path) -> str:
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert result.exit_code == 0, result.output
    return Path(result.output.strip()).read_text()


def so_far(folder: Path) -> SuiteSummary:
    return SuiteSummary.of(summary_so_far(folder))


def state_of(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_running_suite_is_read_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INSPO fails at seed 0; at seed 1 it is at step 2 while the report is asked for."""
    out, summaries, pages = tmp_path / "out", list[SuiteSummary](), list[str]()

    def outcome(config: RunConfig, words: Any) -> int:
        if config.strategy.kind != "inspo":
            return good(config)
        if config.seed != 1:
            return 1
        RunDir.create(config.output, dump_config(config)).metrics(2, {"reward_mean": 0.5})
        before = state_of(out)
        summaries.append(so_far(out))
        assert state_of(out) == before
        pages.append(report(out))
        assert not (out / "summary.json").exists()
        return 1

    Processes(monkeypatch, outcome)
    with pytest.raises(SuiteFailed):
        run(suite_file(tmp_path, at_once=1, seeds=[0, 1, 2]))
    grpo, inspo = summaries[0].methods
    assert (grpo.standing(3), grpo.score) == ("unfinished, 2 of 3 seeds", 0.5)
    assert (inspo.standing(3), inspo.score) == ("failed, 0 of 3 seeds", None)
    sentence = summaries[0].missing
    assert sentence.startswith(
        "4 of 6 runs are missing: GRPO at seed 2 (not begun); INSPO at seed 0 (failed: stage "
        "train, status 1: ValueError: it broke (see "
    )
    assert sentence.endswith("seed 1 (running, step 2), seed 2 (not begun).")
    assert "4 of 6 runs are missing: GRPO at seed 2 (not begun)" in pages[0]


def test_after_a_kill_what_ran_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome(config: RunConfig, words: Any) -> int:
        if config.strategy.kind == "inspo":
            if not RunDir.is_run(config.output):
                RunDir.create(config.output, dump_config(config)).metrics(3, {"reward_mean": 0.5})
            raise MemoryError  # a kill, as far as the folder goes: nothing more is written
        return good(config)

    Processes(monkeypatch, outcome)
    file = suite_file(tmp_path, at_once=1)
    with pytest.raises(MemoryError):
        run(file)
    out = tmp_path / "out"
    assert not is_worked_on(out)
    told = so_far(out).missing
    assert "INSPO at seed 0 (cut off, step 3), seed 1 (not begun)" in told
    assert "GRPO at seed 1 (not begun)" in told
    # A folder that was moved is read where it is, in whatever folder one stands.
    out.rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert so_far(Path("moved")).missing == told


def test_a_finished_suite_is_read_again_from_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Processes(monkeypatch, good)
    run(suite_file(tmp_path))
    out = tmp_path / "out"
    written = json.loads((out / "summary.json").read_text())
    assert SuiteSummary.of(written).missing == ""
    anew = summary_so_far(out)
    assert json.loads(json.dumps({**anew, "created": 0})) == {**written, "created": 0}


def test_more_seeds_are_missing_as_soon_as_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Processes(monkeypatch, good)
    run(suite_file(tmp_path, seeds=[0]))
    told: list[str] = []

    def outcome(config: RunConfig, words: Any) -> int:
        told.append(so_far(tmp_path / "out").missing)
        return good(config)

    Processes(monkeypatch, outcome)
    run(suite_file(tmp_path, seeds=[0, 1], at_once=1))
    assert (
        "2 of 4 runs are missing: GRPO at seed 1 (running); INSPO at seed 1 (not begun)"
        in (told[0])
    )


def test_no_key_of_a_run_file_gets_into_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Processes(monkeypatch, good)
    misplaced = {"llm": {"api_key": "sk-misplaced"}}
    file = suite_file(tmp_path, methods=[{"method": "grpo", "set": misplaced}], seeds=[0])
    text = file.read_text().replace("base:", "base:\n  llm: {api_key: sk-misplaced}")
    file.write_text(text)
    with pytest.raises(ConfigError):
        run(file)
    file = suite_file(tmp_path, methods=["grpo"], seeds=[0])
    file.write_text(file.read_text().replace("base:", "base:\n  llm: {api_key: sk-misplaced}"))
    run(file)  # of no use to GRPO, and so not looked at
    assert "cells" in json.loads((tmp_path / "out/suite.json").read_text())
    assert not any(b"sk-misplaced" in content for content in state_of(tmp_path / "out").values())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 3}'])
def test_a_progress_file_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "suite.json").write_text(text)
    with pytest.raises(ConfigError, match=r"suite\.json is not what cotune compare writes"):
        summary_so_far(tmp_path)
