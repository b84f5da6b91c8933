from pathlib import Path

import pytest

from cotune.experiments.compare.suite_summary import SuiteMethod
from cotune.experiments.report.suite_curves import average, read_curves
from cotune.run.ledger import Ledger
from cotune.run.run_dir import RunDir
from tests.experiments.report.suite_pages import method, stage


def of(**runs: list[str]) -> SuiteMethod:
    by_seed = {key.removeprefix("s"): runs[key] for key in runs}
    return SuiteMethod(**method("m", "ours", None, runs=by_seed))


def test_the_mean_and_range_are_taken_where_all_lines_are() -> None:
    mean, band = average([[(0, 0.0), (10, 1.0)], [(2, 0.5), (6, 0.5)]])
    assert (mean[0][0], mean[-1][0]) == (2, 6)
    assert mean[0][1] == pytest.approx((0.2 + 0.5) / 2)
    assert band[-1] == pytest.approx((6, 0.5, 0.6))


def test_lines_over_the_same_points_keep_them() -> None:
    mean, band = average([[(1, 0.0), (4, 1.0)], [(1, 0.5), (4, 0.0)]])
    assert mean == [(1, 0.25), (4, 0.5)]
    assert band == [(1, 0.0, 0.5), (4, 0.0, 1.0)]


def test_lines_that_share_no_stretch_have_no_mean() -> None:
    assert average([[(1, 0.25)], [(3, 0.5)]]) == ([], [])
    assert average([]) == ([], [])


def test_rollouts_count_training_and_verification_and_no_evaluation(tmp_path: Path) -> None:
    stage(tmp_path / "a", 8, (0.2, 0.9), verify=True)
    curve = read_curves(tmp_path, of(s0=["a"])).curves["validation"]
    assert [x for x, _ in curve.mean] == [4 * 96, 8 * 96 + 48]


def test_stages_are_laid_end_to_end(tmp_path: Path) -> None:
    stage(tmp_path / "a", 4, (0.2, 0.5))
    stage(tmp_path / "b", 8, (0.5, 0.9))
    found = read_curves(tmp_path, of(s0=["a", "b"]))
    curve = found.curves["validation"]
    assert [x for x, _ in curve.mean] == [4 * 96, 8 * 96, 12 * 96]
    assert curve.stages == [4 * 96]


def test_rollouts_that_a_resume_dropped_do_not_count(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "a", {"name": "a"})
    with Ledger(run.ledger_path) as ledger:
        ledger.begin_attempt(None)
        for step in (1, 2):
            ledger.set_step(step)
            ledger.add_rollouts("train", 100, 0)
        ledger.begin_attempt(1)
        ledger.set_step(2)
        ledger.add_rollouts("train", 7, 0)
    for step in (1, 2):
        run.metrics(step, {"reward_mean": 0.5})
    curve = read_curves(tmp_path, of(s0=["a"])).curves["reward"]
    assert [x for x, _ in curve.mean] == [100, 107]


def test_without_a_ledger_nobody_knows_the_rollouts(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "a", {"name": "a"})
    run.metrics(1, {"reward_mean": 0.5})
    assert read_curves(tmp_path, of(s0=["a"])).curves == {}


def test_finished_seeds_are_drawn_where_there_are_any(tmp_path: Path) -> None:
    stage(tmp_path / "a", 8, (0.2, 0.9))
    stage(tmp_path / "b", 4, (0.2, 0.4), finish=False)
    runs = {"0": ["a"], "1": ["b"]}
    half = SuiteMethod(**method("m", "ours", 0.9, by_seed={"0": 0.9}, runs=runs))
    assert read_curves(tmp_path, half).curves["reward"].band == ()
    assert read_curves(tmp_path, of(s1=["b"])).curves["reward"].band == ()
