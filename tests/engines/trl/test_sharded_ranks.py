"""Runs whose gradients, moments or weights are spread over two gloo ranks are those of one process.

accelerate and DeepSpeed are told, in the ranks alone, to do on a CPU what they do on GPUs.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from cotune.run.run_dir import RunDir
from tests.engines.trl.kills import cotune, numbers, run_file, without
from tests.engines.trl.sharded_ranks import content
from tests.forked import run_ranks

pytestmark = pytest.mark.slow
WRAPPERS = {"ddp": "DistributedDataParallel", "fsdp2": "FSDPModule", "zero2": "DeepSpeedEngine"}
SHARDING = {"ddp": "none"}  # where it is not called what the wrapper is


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """The same run in one process."""
    folder = tmp_path_factory.mktemp("alone")
    done = cotune("nowhere", 0, "train", str(run_file(folder, "alone", content({}, 6))))
    assert done.returncode == 0, done.stdout + done.stderr
    return RunDir.open(folder / "alone")


def rolled_out(run: RunDir, step: int) -> list[dict[str, Any]]:
    """A step's rollouts: what was assigned, and the tokens."""
    file = run.path / "trajectories" / f"train-{step:06d}.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [
        {
            "task": row["task"]["id"],
            **{name: row[name] for name in ("instruction", "group", "sampled", "completion_ids")},
        }
        for row in rows
    ]


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    return load_file(run.checkpoints_path / "checkpoint-2" / "model.safetensors")


def sums(run: RunDir) -> dict[str, float]:
    return {name: tensor.double().sum().item() for name, tensor in weights(run).items()}


@pytest.mark.parametrize("kind", WRAPPERS)
def test_two_ranks_are_one_process(tmp_path: Path, alone: RunDir, kind: str) -> None:
    if kind == "zero2":
        pytest.importorskip("deepspeed")
    run_ranks("tests.engines.trl.sharded_ranks", tmp_path, kind)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    unbroken, resumed = RunDir.open(tmp_path / "unbroken"), RunDir.open(tmp_path / kind)
    whole = sum(tensor.numel() for tensor in weights(alone).values())
    for rank in ranks:
        for found in (rank["whole"], rank["resumed"]):
            assert found["world_size"] == 2
            assert found["sharding"] == SHARDING.get(kind, kind)
            assert WRAPPERS[kind] in found["wrapper"]
            assert (found["here"], found["parameters"]) == (
                whole // 2 if kind == "fsdp2" else whole,
                whole,
            )
        # Equal on both, bit for bit; and once lost, brought back from best/.
        assert rank["whole"]["weights"] == ranks[0]["whole"]["weights"]
        assert rank["whole"]["best"] == rank["whole"]["weights"]
        assert rank["resumed"]["weights"] == rank["whole"]["weights"]
    for step in (1, 2):  # an instruction of the evolution between them among those of the second
        assert rolled_out(unbroken, step) == rolled_out(alone, step)
        assert rolled_out(resumed, step) == rolled_out(unbroken, step)
    assert {row["instruction"] for row in rolled_out(alone, 2)} - {"i0", "i1", "i2"}
    assert [row["grad_norm"] for row in numbers(unbroken)] == pytest.approx(
        [row["grad_norm"] for row in numbers(alone)], rel=1e-3
    )
    assert numbers(resumed) == numbers(unbroken)
    mine, its = sums(unbroken), sums(alone)
    # The trainer's own file under FSDP2 names the tied head, too.
    assert {name: mine[name] for name in its} == pytest.approx(its, abs=1e-2)
    saved = load_file(unbroken.best_path / "model.safetensors")
    assert saved.keys() == its.keys()
    kept = json.loads((resumed.checkpoints_path / "cotune-state-2.json").read_text())
    assert (kept["sharding"], kept["processes"]) == (SHARDING.get(kind, kind), 2)
    events = [without(run.read_events(), {"time"}) for run in (unbroken, resumed)]
    assert "resumed" in {row["kind"] for row in events[1]} - {row["kind"] for row in events[0]}
