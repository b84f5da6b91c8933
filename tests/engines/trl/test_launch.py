"""Which processes and GPUs a run is started with; the counts of GPUs are faked."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cotune.config.run_file import RunConfig, parse_config
from cotune.engines.preflight import Preflight
from cotune.engines.trl import run_file_setup as trl_setup
from cotune.engines.trl.checks import check_args
from cotune.engines.trl.run_file_setup import grpo_config
from cotune.engines.trl.trl_engine import arguments
from cotune.errors import ConfigError
from tests.run_files import tiny


def run_config(**training: Any) -> RunConfig:
    section = {"engine_args": {"use_cpu": False}, **training}
    return parse_config(tiny(Path("out"), {"training": section}), "test")


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
    config = run_config(single_gpu=True)
    args = grpo_config(config, tmp_path)
    check_args(args)
    gpus(1)
    alone = grpo_config(config, tmp_path)
    for name in ("n_gpu", "train_batch_size", "parallel_mode", "world_size", "device"):
        assert getattr(args, name) == getattr(alone, name), name
    assert (args.n_gpu, args.train_batch_size) == (1, 2)
