"""A run that is killed again and again ends as one that never was."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cotune.llm.ledger import Ledger
from cotune.run_dir import RunDir

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]

# Six tasks, two a step: an epoch takes three steps. Saved every two steps.
RUN: dict[str, Any] = {
    "name": "killed",
    "seed": 3,
    "threads": 1,
    "environment": {"kind": "geo", "train": 6, "validation": 3, "test": 3},
    "limits": {
        "turns": 2,
        "turn_tokens": 24,
        "observation_tokens": 40,
        "trajectory_tokens": 120,
        "prompt_tokens": 384,
    },
    "strategy": {
        "kind": "inspo",
        "population_size": 3,
        "prune_every": 4,
        "evolve_every": 2,
        "evolve_until": 7,
        "verification_tasks": 3,
        "verification_rounds": 1,
        "candidates": 2,
    },
    "llm": {"kind": "rules"},
    "training": {
        "steps": 8,
        "questions_per_step": 2,
        "group_size": 3,
        "mini_batches": 1,
        "micro_batch_size": 6,
        "learning_rate": 1e-3,
        "schedule": "linear",
        "kl": 0,
        "save_every": 2,
    },
    "evaluation": {"every": 4, "before": True},
}

KILLS = [
    ("train", 2),  # epoch 1, before there is any checkpoint: starts anew
    ("verify", 3),  # in an evolution: from 2
    ("checkpoint", 4),  # epoch 2, a torn pair: from 2 again
    ("state", 6),  # in our own half: from 4
    ("log", 8),  # epoch 3, weights updated, nothing of it written: from 6
]
OF_ONE_ATTEMPT = {"time", "attempt", "step_time"}
"""Fields that say when something was, or in which attempt."""
ABOUT_THE_ATTEMPT = {"run_started", "resumed", "saved", "cut_back", "notice", "run_finished"}
"""Events about attempts, not about what was learnt."""


def cotune(place: str, step: int, *command: str) -> subprocess.CompletedProcess[str]:
    module = [sys.executable, "-m", "tests.engines.trl.killed_run"]
    return subprocess.run(
        [*module, place, str(step), *command, "--quiet"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def run_file(folder: Path, name: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**RUN, "output": str(folder / name)}))
    return path


def without(rows: list[dict[str, Any]], fields: set[str]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in fields} for row in rows]


def learnt(run: RunDir) -> list[dict[str, Any]]:
    events = [row for row in run.read_events() if row["kind"] not in ABOUT_THE_ATTEMPT]
    return without(events, OF_ONE_ATTEMPT)


def spent(run: RunDir) -> dict[str, Any]:
    with Ledger(run.ledger_path) as ledger:
        totals = ledger.totals()
    names = ("rollouts", "generated_tokens", "llm_calls", "llm_prompt_tokens")
    return {name: getattr(totals, name) for name in names}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, RunDir]:
    """The same run file, unbroken and killed five times."""
    folder = tmp_path_factory.mktemp("runs")
    done = cotune("nowhere", 0, "train", str(run_file(folder, "unbroken")))
    assert done.returncode == 0, done.stderr
    command = ["train", str(run_file(folder, "broken"))]
    for place, step in KILLS:
        done = cotune(place, step, *command)
        assert done.returncode == -signal.SIGKILL, f"{place} {step}: {done.stdout}{done.stderr}"
        command = ["resume", str(folder / "broken")]
    done = cotune("nowhere", 0, *command)
    assert done.returncode == 0, done.stderr
    return RunDir.open(folder / "unbroken"), RunDir.open(folder / "broken")


def test_every_resume_went_on_from_the_newest_whole_checkpoint(
    runs: tuple[RunDir, RunDir],
) -> None:
    unbroken, broken = runs
    resumed = [row["from_step"] for row in broken.read_events() if row["kind"] == "resumed"]
    assert resumed == [2, 2, 4, 6]
    assert (unbroken.attempt, broken.attempt) == (1, 6)


def test_the_numbers_of_every_step_are_those_of_the_unbroken_run(
    runs: tuple[RunDir, RunDir],
) -> None:
    unbroken, broken = (without(run.read_metrics(), OF_ONE_ATTEMPT) for run in runs)
    assert [row["step"] for row in unbroken] == list(range(1, 9))
    assert broken == unbroken
    assert all(row["grad_norm"] > 0 for row in unbroken)


def test_instructions_and_all_that_was_learnt_are_those_of_the_unbroken_run(
    runs: tuple[RunDir, RunDir],
) -> None:
    unbroken, broken = runs
    assert learnt(broken) == learnt(unbroken)
    kinds = {row["kind"] for row in learnt(unbroken)}
    assert {"population", "evolution", "instruction_born", "evaluated"} <= kinds
    lineages = [without(run.read_instructions(), OF_ONE_ATTEMPT) for run in runs]
    assert lineages[0] == lineages[1]
    assert len(lineages[0]) >= 3
    bests = [json.loads((run.best_path / "best.json").read_text()) for run in runs]
    assert bests[0] == bests[1]


def test_what_is_committed_to_the_ledger_is_what_the_unbroken_run_spent(
    runs: tuple[RunDir, RunDir],
) -> None:
    unbroken, broken = runs
    assert spent(broken) == spent(unbroken)
    assert spent(unbroken)["rollouts"]["train"] == 8 * 6
    assert spent(unbroken)["rollouts"]["verify"] > 0
    with Ledger(broken.ledger_path) as ledger:
        lost = [row for row in ledger.rows() if not row.committed]
    assert {row.kind for row in lost} >= {"train", "verify", "llm"}


def test_the_summaries_agree(runs: tuple[RunDir, RunDir]) -> None:
    arms = []
    for run in runs:
        summary = run.read_summary()
        assert summary is not None
        arms.append({k: v for k, v in summary["arms"]["inspo"].items() if k != "seconds"})
    assert arms[0] == arms[1]


def test_a_finished_run_is_not_resumed(runs: tuple[RunDir, RunDir]) -> None:
    done = cotune("nowhere", 0, "resume", str(runs[1].path))
    assert done.returncode == 2
    assert "is finished" in done.stdout + done.stderr
