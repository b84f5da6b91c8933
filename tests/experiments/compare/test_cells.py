"""Cells: stages one after the other, what is finished is not run again, failures stay their own."""

from pathlib import Path
from typing import Any

import pytest

from cotune.config.run_file import RunConfig, dump_config
from cotune.errors import ConfigError
from cotune.experiments.chains import run_chains
from cotune.experiments.compare.running import SuiteCell, cells_of
from cotune.experiments.compare.suite_file import load_suite
from cotune.experiments.evaluate.quadrants import relative
from cotune.run.record import Record
from tests.experiments.compare.folders import Start, finish, suite_file, value_of
from tests.experiments.evaluate.folders import quadrants

REWARDS = (1.0, 0.0, 1.0, 0.0)
TEXT = "Found. <search> </search> <answer> </answer> <think> </think> <information> </information>"


def cells_in(folder: Path, **changes: Any) -> list[SuiteCell]:
    return cells_of(*load_suite(suite_file(folder, **changes)))


def run(cells: list[SuiteCell], at_once: int = 2) -> None:
    run_chains(cells, at_once, lambda: None, every=0.0)


def finish_run(config: RunConfig, words: tuple[str, ...]) -> int:
    finish(config, REWARDS, {"train": 16, "evaluate": 4}, instruction=TEXT)
    return 0


def test_what_is_finished_is_not_run_again_and_no_more_run_at_once_than_asked_for(
    tmp_path: Path, start: Start
) -> None:
    processes = start(finish_run)
    run(cells_in(tmp_path, seeds=[1]))
    assert [words[0] for words in processes.started] == ["train"] * 2
    assert all(words[-1] == "--quiet" for words in processes.started)
    processes.started.clear()
    cells = cells_in(tmp_path, seeds=[0, 1, 2])
    states: list[list[str]] = []
    run_chains(cells, 2, lambda: states.append([cell.state for cell in cells]), every=0.0)
    assert states[0] == ["running", "running", "done", "done", "waiting", "waiting"]
    assert max(snapshot.count("running") for snapshot in states) == 2
    assert set(states[-1]) == {"done"}
    seeds = [Path(words[1]).parent.name for words in processes.started]
    assert seeds == ["seed-0"] * 2 + ["seed-2"] * 2


@pytest.mark.parametrize("was_finished", [False, True])
def test_a_run_that_was_cut_off_is_resumed(
    was_finished: bool, tmp_path: Path, start: Start
) -> None:
    """Also one that was finished and then resumed: its summary.json is the first attempt's."""
    cell = cells_in(tmp_path)[0]
    folder = cell.folder / "train"
    processes = start(finish_run)
    if was_finished:
        run([cell])
        Record.open(folder).cut_back(1)
    else:
        Record.create(folder, dump_config(cell.planned[0]))
    processes.started.clear()
    run(cells_in(tmp_path))
    assert ("resume", str(folder), "--trust", "--quiet") in processes.started
    assert [words[0] for words in processes.started].count("train") == 3


def test_a_run_of_another_configuration_is_refused_and_left_alone(
    tmp_path: Path, start: Start
) -> None:
    start(finish_run)
    run(cells_in(tmp_path))
    run_file = (tmp_path / "out/inspo/seed-0/train/run.yaml").read_text()
    message = "train holds a run with another value of training.steps; restore the suite file"
    with pytest.raises(ConfigError, match=message):
        cells_in(tmp_path, budget=48)
    assert {c.state for c in cells_in(tmp_path, set={"threads": 64})} == {"done"}
    assert (tmp_path / "out/inspo/seed-0/train/run.yaml").read_text() == run_file


@pytest.mark.parametrize(("listed", "gpus"), [("2,5", {"2", "5"}), ("2", {None}), ("", {None})])
def test_runs_are_spread_over_the_gpus_that_are_listed(
    listed: str,
    gpus: set[str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    start: Start,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    processes = start(finish_run)
    run(cells_in(tmp_path, seeds=[0, 1]))
    assert set(processes.gpus[:2]) == set(processes.gpus) == gpus


def finish_or_score(config: RunConfig, words: tuple[str, ...]) -> int:
    """A finished run, or its quadrants."""
    if words[0] != "evaluate":
        finish(config, REWARDS, {"train": 16}, instruction=TEXT, figures={"em_n": 4})
        return 0
    folder = Path(words[1])
    origin = value_of(words, "--since")
    since = relative(Path(origin), folder) if origin else ""
    quadrants(samples=int(value_of(words, "--samples") or 0), since=since).write(folder)
    return 0


def test_the_last_stage_has_its_quadrants_scored_once(tmp_path: Path, start: Start) -> None:
    changes = {"methods": ["grpo", "prompt-before-rl"], "seeds": [0]}
    processes = start(finish_or_score)
    cells = cells_in(tmp_path, quadrant_samples=2, **changes)
    run(cells, at_once=1)
    assert {cell.state for cell in cells} == {"done"}
    out = tmp_path / "out"
    grpo = str(out / "grpo/seed-0/train")
    prompt, train = (str(out / f"prompt-before-rl/seed-0/{name}") for name in ("prompt", "train"))
    scoring = [words for words in processes.started if words[0] == "evaluate"]
    options = ("--trust", "--quadrants", "--samples", "2")
    assert scoring == [
        ("evaluate", grpo, *options),
        ("evaluate", train, *options, "--since", prompt),
    ]

    def rerun(samples: int) -> list[str]:
        processes.started.clear()
        run(cells_in(tmp_path, quadrant_samples=samples, **changes), at_once=1)
        return [words[1] for words in processes.started]

    assert rerun(2) == []
    assert rerun(0) == []
    assert rerun(3) == [grpo, train]


def test_processes_are_ended_where_the_suite_is(tmp_path: Path, start: Start) -> None:
    processes = start(finish_run)

    def stopped() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_chains(cells_in(tmp_path), 2, stopped, every=0.0)
    assert [child.poll() for child in processes.children] == [-15, -15]
