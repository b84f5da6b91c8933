"""A run on veRL that is killed goes on from its newest whole checkpoint as if it had not been."""

from pathlib import Path
from typing import Any

import pytest

from cotune.run.checkpoints import complete_checkpoints, newest_undamaged
from tests.engines.verl.runs import cotune, events, kill_once, rows, run_file, start, summary
from tests.engines.verl.test_learning import INSPO

pytestmark = pytest.mark.verl


def step_three(run: Path) -> list[dict[str, Any]]:
    """Its rollouts, of whichever attempt."""
    found = rows(run / "trajectories" / "train-000003.jsonl")
    return [{k: v for k, v in row.items() if k != "attempt"} for row in found]


def test_a_killed_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    # Draws are a function of (seed, step, row) only where the rollout engine takes a seed.
    seeded = {"actor_rollout_ref.rollout.full_determinism": True}
    path = run_file(tmp_path, strategy=INSPO, steps=4, save_every=2, engine_args=seeded)
    run = tmp_path / "run"
    metrics = run / "metrics.jsonl"
    kill_once(start("train", path), lambda: any(row["step"] == 3 for row in rows(metrics)))
    third = step_three(run)
    assert len(third) == 8 * 4
    before = {row["id"] for row in events(run, "instruction_born")}

    cotune("resume", run)

    assert [row["from_step"] for row in events(run, "resumed")] == [2]
    assert step_three(run) == third
    assert {row["id"] for row in events(run, "instruction_born")} == before
    assert [row["step"] for row in rows(run / "metrics.jsonl")] == [1, 2, 3, 4]
    chosen = newest_undamaged(complete_checkpoints(run / "checkpoints"))
    assert chosen.path == run / "checkpoints" / "global_step_4"
    assert chosen.notices == ()  # with a manifest, which holds
    (arm,) = summary(run)["arms"].values()
    assert arm["policy_rollouts"]["train"] == 4 * 8 * 4
    assert arm["steps"] == 4
