"""A run that is killed again and again ends as one that never was."""

import json
from pathlib import Path

import pytest

from cotune.run.run_dir import RunDir
from tests.engines.trl.kills import (
    OF_ONE_ATTEMPT,
    RUN,
    check_that_they_end_alike,
    cotune,
    learnt,
    numbers,
    run_file,
    run_with_kills,
    spent,
    with_sections,
    without,
)

pytestmark = pytest.mark.slow

KILLS = [
    ("train", 2),  # epoch 1, before there is any checkpoint: starts anew
    ("verify", 3),  # in an evolution: from 2
    ("checkpoint", 4),  # epoch 2, a torn pair: from 2 again
    ("state", 6),  # in our own half: from 4
    ("log", 8),  # epoch 3, weights updated, nothing of it written: from 6
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, RunDir]:
    """The same run file, unbroken and killed five times."""
    folder = tmp_path_factory.mktemp("runs")
    unbroken = run_with_kills(run_file(folder, "unbroken"), [])
    return unbroken, run_with_kills(run_file(folder, "broken"), KILLS)


def test_every_resume_went_on_from_the_newest_whole_checkpoint(runs: tuple[RunDir, RunDir]) -> None:
    unbroken, broken = runs
    resumed = [row["from_step"] for row in broken.read_events() if row["kind"] == "resumed"]
    assert resumed == [2, 2, 4, 6]
    assert (unbroken.attempt, broken.attempt) == (1, 6)


def test_it_ends_as_the_unbroken_run(runs: tuple[RunDir, RunDir]) -> None:
    unbroken, broken = runs
    check_that_they_end_alike(broken, unbroken)
    rows = numbers(unbroken)
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert all((row["grad_norm"] > 0) == (row["zero_advantage_share"] < 1) for row in rows)
    assert sum(row["grad_norm"] > 0 for row in rows) > 4
    kinds = {row["kind"] for row in learnt(unbroken)}
    assert {"population", "evolution", "instruction_born", "evaluated"} <= kinds
    lineages = [without(run.read_instructions(), OF_ONE_ATTEMPT) for run in runs]
    assert lineages[0] == lineages[1]
    assert len(lineages[0]) >= 3
    bests = [json.loads((run.best_path / "best.json").read_text()) for run in runs]
    assert bests[0] == bests[1]


def test_what_was_spent_in_vain_is_told_apart(runs: tuple[RunDir, RunDir]) -> None:
    unbroken, broken = runs
    assert spent(unbroken)["rollouts"]["train"] == 8 * 6
    assert spent(unbroken)["rollouts"]["verify"] > 0
    lost = [row for row in broken.read_costs() if not row.committed]
    assert {row.kind for row in lost} >= {"train", "verify"}


def test_a_finished_run_is_not_resumed(runs: tuple[RunDir, RunDir]) -> None:
    done = cotune("nowhere", 0, "resume", str(runs[1].path))
    assert done.returncode == 2
    assert "is finished" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "strategy",
    [
        {"kind": "inspo", "groups": "mixed", "target": "initial"},
        {"kind": "fst", "target": "initial", "prompts": 2, "budget": 24, "dev_size": 3,
         "distillation": {"ratio": "masked_signed"}},
    ],
    ids=["mixed", "fst"],
)  # fmt: skip
def test_runs_under_other_group_plans_resume_exactly(
    strategy: dict[str, object], tmp_path: Path
) -> None:
    content = with_sections(
        training={"steps": 2, "save_every": 1}, evaluation={"every": 1, "before": False}
    )
    base = RUN["strategy"] if strategy["kind"] == "inspo" else {}
    content["strategy"] = {**base, **strategy, "evolve_every": 1}
    unbroken = run_with_kills(run_file(tmp_path, "unbroken", content), [])
    broken = run_with_kills(run_file(tmp_path, "broken", content), [("state", 2)])
    assert broken.attempt == 2
    check_that_they_end_alike(broken, unbroken)
    plans = [row for row in learnt(unbroken) if row["kind"] == "population"]
    assert len(plans) == 2
