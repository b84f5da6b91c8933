"""A run on veRL that is killed goes on from its newest whole checkpoint as if it had not been."""

from pathlib import Path
from typing import Any

import pytest

from cotune.run.checkpoints import complete_checkpoints
from tests.engines.verl.runs import cotune, events, kill_once, rows, run_file, start, summary

pytestmark = pytest.mark.verl

INSPO = {
    "kind": "inspo",
    "prune_every": 2,
    "evolve_every": 2,
    "evolve_until": 4,
    "verification_tasks": 6,
    "population_size": 3,
}
STEPS = [1, 2, 3, 4, 5]


def rollouts(run: Path, step: int) -> list[dict[str, Any]]:
    """A step's, of whichever attempt."""
    recorded = rows(run / "trajectories" / f"train-{step:06d}.jsonl")
    return [{k: v for k, v in row.items() if k != "attempt"} for row in recorded]


def test_inspo_learns_on_two_ranks_though_it_is_killed(tmp_path: Path) -> None:
    """The bundled policy learns to search one entity at a time, and keeps it.

    On two FSDP2 ranks, each with a rollout replica of its own.
    """
    # Draws are a function of (seed, step, row) only where the rollout engine takes a seed.
    seeded = {"actor_rollout_ref.rollout.full_determinism": True}
    sizes: dict[str, Any] = {"micro_batch_size": 8, "mini_batches": 2}
    path = run_file(
        tmp_path, strategy=INSPO, ranks=2, steps=5, save_every=2, engine_args=seeded, **sizes
    )
    run = tmp_path / "run"
    metrics_file = run / "metrics.jsonl"
    process = start("train", path, "--set", "evaluation.every=2")
    kill_once(process, lambda: any(row["step"] == 3 for row in rows(metrics_file)))
    third = rollouts(run, 3)
    assert len(third) == 8 * 4
    ids_before = {row["id"] for row in events(run, "instruction_born")}

    printed = cotune("resume", run)

    assert [row["from_step"] for row in events(run, "resumed")] == [2]
    assert rollouts(run, 3) == third
    born = events(run, "instruction_born")
    assert {row["id"] for row in born if row["step"] <= 3} == ids_before
    assert any(row["origin"] == "reflection" for row in born)
    assert events(run, "instruction_pruned")
    for step in STEPS:
        groups = [row["group"] for row in rollouts(run, step)]
        assert groups == [group for group in range(8) for _ in range(4)]

    metrics = rows(metrics_file)
    assert [row["step"] for row in metrics] == STEPS
    assert metrics[-1]["reward_mean"] > metrics[0]["reward_mean"] + 0.3
    assert all(row["grad_norm"] > 0 for row in metrics if row["zero_advantage_share"] < 1)
    (arm,) = summary(run)["arms"].values()
    assert arm["em"] >= arm["em_initial_instruction"] + 0.3
    assert arm["steps"] == 5
    assert arm["policy_rollouts"]["train"] == 5 * 8 * 4
    assert arm["policy_rollouts"]["verify"] > 0
    assert arm["policy_rollouts"]["evaluate"] > 0

    (newest, *_) = complete_checkpoints(run / "checkpoints")
    assert newest == run / "checkpoints" / "global_step_5"
    pieces = {p.name for p in (newest / "actor").glob("model_*")}
    assert pieces == {"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"}
    assert "step 5/5" in printed
    assert (run / "report.html").is_file()
    assert list((run / "best").glob("*.safetensors"))
    assert (run / "best" / "instruction.txt").read_text().strip() == arm["best_instruction"]
    assert len(list((run / "checkpoints" / "best").glob("step_*"))) == 1
