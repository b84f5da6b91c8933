"""Two FSDP2 ranks, each with a rollout replica of its own."""

from pathlib import Path

import pytest

from tests.engines.verl.runs import cotune, rows, run_file, summary

pytestmark = pytest.mark.verl


def test_two_ranks_train_one_policy(tmp_path: Path) -> None:
    path = run_file(tmp_path, ranks=2, steps=2, save_every=2, micro_batch_size=8, mini_batches=2)
    cotune("train", path)
    run = tmp_path / "run"

    pieces = {p.name for p in (run / "checkpoints" / "global_step_2" / "actor").glob("model_*")}
    assert pieces == {"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"}
    assert [row["step"] for row in rows(run / "metrics.jsonl")] == [1, 2]
    for step in (1, 2):
        groups = [row["group"] for row in rows(run / "trajectories" / f"train-{step:06d}.jsonl")]
        assert groups == [group for group in range(8) for _ in range(4)]
    (arm,) = summary(run)["arms"].values()
    assert arm["policy_rollouts"]["train"] == 2 * 8 * 4
