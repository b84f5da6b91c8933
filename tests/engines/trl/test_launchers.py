"""`accelerate launch` starts what docs/how-to/launching.md says: two processes over gloo, on the CPU."""

from pathlib import Path

import pytest
import yaml

from cotune.run.run_dir import RunDir
from tests.engines.trl.forked_launcher import ACCELERATE, launched
from tests.policy.tiny import small_policy
from tests.run_files import tiny, write

pytestmark = pytest.mark.slow
DDP = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "MULTI_GPU",
    "num_machines": 1,
    "num_processes": 2,
}


def test_accelerate_starts_two_that_train_one_run(tmp_path: Path) -> None:
    file = tmp_path / "accelerate.yaml"
    file.write_text(yaml.safe_dump(DDP))
    changes = {
        "policy": {"path": small_policy()},
        "training": {"steps": 2, "save_every": 2},
        "logging": {"trajectories_every": 1},
    }
    run_file = write(tmp_path / "run.yaml", tiny(tmp_path / "run", changes))
    command = ("-m", "cotune", "train", run_file)
    done = launched(ACCELERATE, "--config_file", file, "--main_process_port", 0, *command)
    assert done.returncode == 0, done.stderr
    run = RunDir.open(tmp_path / "run")
    assert [row["step"] for row in run.read_metrics()] == [1, 2]
    # A step's rollouts are shared; each process alone would have written all of them.
    lines = (run.path / "trajectories" / "train-000001.jsonl").read_text().splitlines()
    assert len(lines) == 4 * 2
    saved = run.checkpoints_path / "checkpoint-2"
    assert {file.name for file in saved.glob("rng_state*")} == {
        "rng_state_0.pth",
        "rng_state_1.pth",
    }
    assert done.stdout.count("step 2/2") == 1  # the first process alone shows
