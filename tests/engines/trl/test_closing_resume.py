"""A kill in what follows the last step: only that is done anew, and training is over."""

from typing import Any

import pytest

from cotune.run.best import read_best
from cotune.run.run_dir import RunDir
from tests.engines.trl.kills import (
    arm,
    check_that_they_end_alike,
    numbers,
    run_file,
    run_with_kills,
    with_sections,
)

pytestmark = pytest.mark.slow

SECTIONS: dict[str, Any] = {
    "strategy": {"evolve_every": 0, "prune_every": 0},
    "training": {"steps": 2, "save_every": 1},
    "evaluation": {"every": 4, "before": False},
}
# A third and a fourth step would follow, but a budget of two batches ends the run before.
# What it takes up to close with is an adapter here, and all of a policy in the other run.
BY_BUDGET = {
    **SECTIONS,
    "training": {"steps": 4, "save_every": 1, "rollout_budget": 12, "kl": 0.05},
    "policy": {"lora": {"rank": 2, "alpha": 4, "dropout": 0.1}},
    "evaluation": {"every": 1, "before": False},
}


@pytest.fixture(scope="module", params=[SECTIONS, BY_BUDGET], ids=["last step", "budget"])
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunDir, RunDir]:
    folder = tmp_path_factory.mktemp("runs")
    # With this seed the best instruction is not the initial one.
    content = with_sections(**request.param) | {"seed": 2}
    return (
        run_with_kills(run_file(folder, "unbroken", content), []),
        # The instruction is chosen on validation, the test split rolled out, but not yet written.
        run_with_kills(run_file(folder, "broken", content), [("third evaluation", 3)]),
    )


def test_training_is_not_gone_on_with(runs: tuple[RunDir, RunDir]) -> None:
    _, broken = runs
    assert [row["step"] for row in numbers(broken)] == [1, 2]
    assert {row["attempt"] for row in broken.read_metrics()} == {1}


def test_the_closing_step_is_written_and_counted_once(runs: tuple[RunDir, RunDir]) -> None:
    unbroken, broken = runs
    check_that_they_end_alike(broken, unbroken)
    assert arm(broken)["steps"] == 2
    closing = [row for row in broken.read_events() if row["step"] == 3]
    assert {row["attempt"] for row in closing} == {2}
    kinds = [(row["kind"], row.get("when")) for row in closing]
    assert len(kinds) == len(set(kinds))
    assert {("evaluated", "during"), ("evaluated", "after")} <= set(kinds)
    assert ("evaluated", "uplift") in kinds
    records = [read_best(run.best_path) for run in runs]
    assert records[0] == records[1]
    assert records[0] is not None
    assert records[0].initial_em is not None
    assert {("best_instruction", None), ("run_finished", None)} <= set(kinds)
    files = [step_purpose for step_purpose in broken.trajectory_files() if step_purpose[0] == 3]
    assert files == [f for f in unbroken.trajectory_files() if f[0] == 3]
    for step, purpose in files:
        rows = [len(run.read_trajectories(step, purpose)) for run in runs]
        assert rows == [3, 3]  # of three questions
