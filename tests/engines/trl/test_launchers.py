"""`accelerate launch` starts what docs/how-to/launching.md says: two processes over gloo, on the CPU."""

import importlib.util
import subprocess
from pathlib import Path

import pytest
import yaml

from cotune.run.run_dir import RunDir
from tests.engines.trl.forked_launcher import ACCELERATE, launched
from tests.policy.tiny import small_policy
from tests.run_files import tiny, write

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
DDP = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "MULTI_GPU",
    "num_machines": 1,
    "num_processes": 2,
}


def started(*arguments: object, of: Path) -> "tuple[subprocess.CompletedProcess[str], list[str]]":
    """What `accelerate launch` of `-m cotune train` ends with, and the lines that cotune says of an error."""
    done = launched(
        ACCELERATE, *arguments, "--main_process_port", 0, "-m", "cotune", "train", run_file(of)
    )
    return done, [
        line for line in done.stderr.splitlines() if line.startswith(("cotune:", "cotune (rank"))
    ]


def run_file(folder: Path) -> Path:
    """Two steps of a small policy, evaluated afterwards."""
    changes = {
        "policy": {"path": small_policy()},
        "training": {"steps": 2, "save_every": 2},
        "logging": {"trajectories_every": 1},
    }
    return write(folder / "run.yaml", tiny(folder / "run", changes))


def test_accelerate_starts_two_that_train_one_run(tmp_path: Path) -> None:
    file = tmp_path / "accelerate.yaml"
    file.write_text(yaml.safe_dump(DDP))
    done, _ = started("--config_file", file, of=tmp_path)
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


@pytest.mark.parametrize("name", ["fsdp2", "zero2"])
def test_the_shipped_files_are_refused_in_a_line_where_they_cannot_work(
    tmp_path: Path, name: str
) -> None:
    """On a CPU, FSDP would be passed over in silence; DeepSpeed is looked for by accelerate."""
    if name == "zero2" and importlib.util.find_spec("deepspeed") is not None:
        pytest.skip(
            "DeepSpeed is installed: tests/engines/trl/test_sharded_ranks.py trains with it"
        )
    file = ROOT / "configs" / "accelerate" / f"{name}.yaml"
    done, said = started("--config_file", file, "--num_processes", 2, of=tmp_path)
    assert done.returncode == 1
    assert not (tmp_path / "run").exists()
    if name == "fsdp2":
        assert said
        assert all("accelerate would silently ignore it" in line for line in said)
    else:
        assert "DeepSpeed is not installed" in done.stderr
