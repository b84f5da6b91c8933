"""A run that is killed again and again ends as one that never was."""

import json
from pathlib import Path
from typing import Any

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
from tests.policy.tiny import small_policy

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


TWO_STEPS = with_sections(
    training={"steps": 2, "save_every": 1}, evaluation={"every": 1, "before": False}
)
# What a method's run file has in place of RUN's, and where the run is killed.
METHODS: dict[str, tuple[dict[str, Any], list[tuple[str, int]]]] = {
    "mixed groups": (
        {**TWO_STEPS, "strategy": {**RUN["strategy"], "groups": "mixed", "target": "initial", "evolve_every": 1}},
        [("state", 2)],
    ),
    "fst": (
        {**TWO_STEPS, "strategy": {
            "kind": "fst", "target": "initial", "prompts": 2, "budget": 24, "dev_size": 3, "evolve_every": 1,
            "distillation": {"ratio": "masked_signed"},
        }},
        [("state", 2)],
    ),
    "gepa on a frozen policy": (
        {
            **with_sections(training={"frozen": True}, evaluation={"every": 0, "before": True}),
            "strategy": {"kind": "gepa", "budget": 24, "dev_size": 2},
        },
        [("before third evolve", 1), ("evolve", 1)],
    ),
    # Saved after 2, 4 and 6: while the rollouts of a trial are made, and once it is decided.
    "trial": (
        {
            **with_sections(
                strategy={"verification": "trial", "verification_tasks": 6, "verification_rounds": 1},
                training={"steps": 7},
                evaluation={"every": 0, "before": False},
            ),
            "policy": {"path": small_policy("bundled:ladder")},
        },
        [("train", 4), ("state", 6)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_runs_of_other_methods_resume_exactly(name: str, tmp_path: Path) -> None:
    content, kills = METHODS[name]
    unbroken = run_with_kills(run_file(tmp_path, "unbroken", content), [])
    broken = run_with_kills(run_file(tmp_path, "broken", content), kills)
    assert broken.attempt == 1 + len(kills)
    check_that_they_end_alike(broken, unbroken)
    kind = {"trial": "trial", "gepa on a frozen policy": "gepa_phase_ended"}.get(name, "population")
    assert kind in {row["kind"] for row in learnt(unbroken)}
    assert not any(row.kind == "verify" for row in broken.read_costs() if name == "trial")
