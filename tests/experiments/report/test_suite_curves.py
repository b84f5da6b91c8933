from pathlib import Path

from cotune.experiments.compare.suite_summary import SuiteMethod
from cotune.experiments.report.suite_curves import read_curves
from cotune.run.record import Record
from tests.experiments.report.suite_pages import method, stage


def of(**runs: list[str]) -> SuiteMethod:
    by_seed = {key.removeprefix("s"): runs[key] for key in runs}
    return SuiteMethod(**method("m", "ours", None, runs=by_seed))


def test_rollouts_count_training_and_verification_and_no_evaluation(tmp_path: Path) -> None:
    stage(tmp_path / "a", 8, (0.2, 0.9), verify=True)
    (line,) = read_curves(tmp_path, of(s0=["a"])).lines["validation"]
    assert [x for x, _ in line] == [4 * 96, 8 * 96 + 48]


def test_stages_are_laid_end_to_end(tmp_path: Path) -> None:
    stage(tmp_path / "a", 4, (0.2, 0.5))
    stage(tmp_path / "b", 8, (0.5, 0.9))
    found = read_curves(tmp_path, of(s0=["a", "b"]))
    (line,) = found.lines["validation"]
    assert [x for x, _ in line] == [4 * 96, 8 * 96, 12 * 96]
    assert found.stages == [4 * 96]


def test_rollouts_that_a_resume_dropped_do_not_count(tmp_path: Path) -> None:
    run = Record.create(tmp_path / "a", {"name": "a"})
    run.begin_attempt(None)
    for step in (1, 2):
        run.set_step(step)
        run.count("train", 100, 0)
    run.begin_attempt(1)
    run.set_step(2)
    run.count("train", 7, 0)
    for step in (1, 2):
        run.metrics(step, {"reward_mean": 0.5})
    (line,) = read_curves(tmp_path, of(s0=["a"])).lines["reward"]
    assert [x for x, _ in line] == [100, 107]


def test_without_a_ledger_nobody_knows_the_rollouts(tmp_path: Path) -> None:
    run = Record.create(tmp_path / "a", {"name": "a"})
    run.metrics(1, {"reward_mean": 0.5})
    assert read_curves(tmp_path, of(s0=["a"])).lines == {}


def test_finished_seeds_are_drawn_where_there_are_any(tmp_path: Path) -> None:
    stage(tmp_path / "a", 8, (0.2, 0.9))
    stage(tmp_path / "b", 4, (0.2, 0.4), finish=False)
    runs = {"0": ["a"], "1": ["b"]}
    half = SuiteMethod(**method("m", "ours", 0.9, by_seed={"0": 0.9}, runs=runs))
    assert len(read_curves(tmp_path, half).lines["reward"]) == 1
    assert len(read_curves(tmp_path, of(s1=["b"])).lines["reward"]) == 1
