"""Which processes and GPUs a run is started with; the counts of GPUs are faked."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from datasets import Dataset
from torch.nn import DataParallel
from trl import GRPOTrainer

from cotune.config.run_file import RunConfig, parse_config
from cotune.engines.preflight import Preflight
from cotune.engines.trl import run_file_setup as trl_setup
from cotune.engines.trl.checks import check_args, on_one_gpu
from cotune.engines.trl.run_file_setup import grpo_config
from cotune.engines.trl.trl_engine import arguments
from cotune.errors import ConfigError
from cotune.run.run_dir import RunDir
from tests.engines.trl.forked_launcher import ACCELERATE, launched
from tests.engines.trl.setup import config as own_args
from tests.policy.tiny import small_policy, tiny_model, tiny_tokenizer
from tests.run_files import tiny, write


def run_config(**training: Any) -> RunConfig:
    given = {"engine_args": {"use_cpu": False}, **training}
    return parse_config(tiny(Path("out"), {"training": given}), "test")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Shows a number of GPUs to this process."""
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def show(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return show


def test_one_process_that_sees_several_gpus_is_refused_before_the_policy_is_loaded(
    gpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: Any, **__: Any) -> Any:
        raise AssertionError("the policy was loaded")

    monkeypatch.setattr(trl_setup, "load_model", loaded)
    gpus(4)
    with pytest.raises(
        ConfigError, match=r"one process sees 4 GPUs .* torchrun --nproc_per_node 4 "
    ):
        Preflight(run_config(), new=False).require()
    # Doctor says how to start them.
    assert "one process for each of the 4 GPUs: torchrun" in arguments(run_config(), starting=False)


def test_asked_for_the_trainer_uses_the_first_and_no_more_rows(gpus: Any, tmp_path: Path) -> None:
    gpus(4)
    asked = run_config(single_gpu=True)
    args = grpo_config(asked, tmp_path)
    check_args(args)
    gpus(1)
    alone = grpo_config(asked, tmp_path)
    for name in ("n_gpu", "train_batch_size", "parallel_mode", "world_size", "device"):
        assert getattr(args, name) == getattr(alone, name), name
    assert (args.n_gpu, args.train_batch_size) == (1, 2)
    tokenizer = tiny_tokenizer()
    trainer = GRPOTrainer(
        tiny_model(tokenizer),
        args=on_one_gpu(own_args(tmp_path)),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 4}),
        processing_class=tokenizer,
        reward_funcs=lambda **given: [0.0] * len(given["prompts"]),  # type: ignore[arg-type]
    )
    assert not isinstance(trainer.model_wrapped, DataParallel)


# ---- `accelerate launch` starts what docs/how-to/launching.md says: two processes over gloo, on the CPU


DDP = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "MULTI_GPU",
    "num_machines": 1,
    "num_processes": 2,
}


@pytest.mark.slow
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
