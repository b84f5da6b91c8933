"""INSPO on veRL: the bundled policy learns to search one entity at a time."""

from pathlib import Path

import pytest

from tests.engines.verl.runs import cotune, events, rows, run_file, summary

pytestmark = pytest.mark.verl

INSPO = {
    "kind": "inspo",
    "prune_every": 2,
    "evolve_every": 2,
    "evolve_until": 4,
    "verification_tasks": 6,
    "population_size": 3,
}


def test_inspo_learns_and_keeps_what_it_learnt(tmp_path: Path) -> None:
    path = run_file(tmp_path, strategy=INSPO, steps=5, save_every=2)
    printed = cotune("train", path, "--set", "evaluation.every=2")
    run = tmp_path / "run"

    (arm,) = summary(run)["arms"].values()
    assert arm["em"] >= arm["em_initial_instruction"] + 0.3
    assert arm["policy_rollouts"]["train"] == 5 * 8 * 4
    assert arm["policy_rollouts"]["verify"] > 0
    assert arm["policy_rollouts"]["evaluate"] > 0

    metrics = rows(run / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3, 4, 5]
    assert metrics[-1]["reward_mean"] > metrics[0]["reward_mean"] + 0.3
    assert all(row["grad_norm"] > 0 for row in metrics if row["zero_advantage_share"] < 1)
    born = events(run, "instruction_born")
    assert any(row["origin"] == "reflection" for row in born)
    assert events(run, "instruction_pruned")

    assert "step 5/5" in printed
    assert (run / "report.html").is_file()
    assert list((run / "best").glob("*.safetensors"))
    assert (run / "best" / "instruction.txt").read_text().strip() == arm["best_instruction"]
    assert len(list((run / "checkpoints" / "best").glob("step_*"))) == 1
