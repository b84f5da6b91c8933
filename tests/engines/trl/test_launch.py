"""Which processes and GPUs a run is started with; the counts of GPUs are faked."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch.nn import DataParallel
from trl import GRPOConfig, GRPOTrainer

from cotune.config.run_file import RunConfig, parse_config
from cotune.engines.preflight import Preflight
from cotune.engines.trl import run_file_setup as trl_setup
from cotune.engines.trl.checks import check_args, check_launch, on_one_gpu
from cotune.engines.trl.run_file_setup import grpo_config
from cotune.errors import ConfigError
from tests.engines.trl.setup import config as own_args
from tests.policy.tiny import tiny_model, tiny_tokenizer
from tests.run_files import tiny

ON_GPUS = {"use_cpu": False}


def run_config(**training: Any) -> RunConfig:
    return parse_config(tiny(Path("out"), {"training": training}), "test")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Shows a number of GPUs to a number of processes, `here` of them on this machine."""
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def show(count: int, world: int | None = None, here: int | None = None) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        for name, value in (("WORLD_SIZE", world), ("LOCAL_WORLD_SIZE", here)):
            if value is not None:
                monkeypatch.setenv(name, str(value))

    return show


@pytest.mark.parametrize(
    ("shown", "training"),
    [
        ((0,), {}),
        ((1,), {}),
        ((8, 8, 8), {}),
        ((8, 16, 8), {}),
        ((8, 16), {}),  # started by something that does not say how many are here
        ((0, 2, 2), {}),  # two ranks on the CPU
        ((4,), {"single_gpu": True}),
        ((4,), {"engine_args": {"use_cpu": True}}),
    ],
)
def test_one_process_a_gpu_is_as_it_should_be(shown: Any, training: Any, gpus: Any) -> None:
    gpus(*shown)
    check_launch(run_config(**training).training)


def test_one_process_that_sees_several_gpus_is_refused(gpus: Any) -> None:
    gpus(4)
    with pytest.raises(ConfigError) as refused:
        check_launch(run_config().training)
    assert str(refused.value) == (
        "one process sees 4 GPUs and would split its batches over them (DataParallel); start one "
        "process per GPU: torchrun --nproc_per_node 4 -m cotune train RUN.yaml, or show it one: "
        "CUDA_VISIBLE_DEVICES=0, or set training.single_gpu: true to train on the first"
    )


@pytest.mark.parametrize(("count", "said"), [(1, "1 GPU;"), (2, "2 GPUs;")])
def test_more_processes_than_gpus_are_refused(count: int, said: str, gpus: Any) -> None:
    gpus(count, 4, 4)
    with pytest.raises(ConfigError, match=f"4 processes .* shows {said} .*nproc_per_node {count}"):
        check_launch(run_config().training)


def test_it_is_refused_before_the_policy_is_loaded(
    gpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: Any, **__: Any) -> Any:
        raise AssertionError("the policy was loaded")

    monkeypatch.setattr(trl_setup, "load_model", loaded)
    gpus(2)
    with pytest.raises(ConfigError, match="one process sees 2 GPUs"):
        Preflight(run_config(), new=False).require()


def trainer(args: GRPOConfig) -> GRPOTrainer:
    tokenizer = tiny_tokenizer()
    return GRPOTrainer(
        tiny_model(tokenizer),
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 4}),
        processing_class=tokenizer,
        reward_funcs=lambda **given: [0.0] * len(given["prompts"]),  # type: ignore[arg-type]
    )


def test_in_a_program_of_ones_own_they_are_refused_too(gpus: Any, tmp_path: Path) -> None:
    gpus(3)
    with pytest.raises(ConfigError) as refused:
        check_args(own_args(tmp_path, **ON_GPUS))
    assert str(refused.value) == (
        "one process sees 3 GPUs and would split its batches over them (DataParallel); start one "
        "process per GPU: torchrun --nproc_per_node 3 your_script.py, or show it one: "
        "CUDA_VISIBLE_DEVICES=0"
    )


def test_asked_for_the_trainer_uses_the_first_and_no_more_rows(gpus: Any, tmp_path: Path) -> None:
    gpus(4)
    asked = run_config(single_gpu=True, engine_args=ON_GPUS)
    args = grpo_config(asked, tmp_path)
    check_args(args)
    gpus(1)
    alone = grpo_config(asked, tmp_path)
    for name in ("n_gpu", "train_batch_size", "parallel_mode", "world_size", "device"):
        assert getattr(args, name) == getattr(alone, name), name
    assert (args.n_gpu, args.train_batch_size) == (1, 2)
    assert not isinstance(trainer(on_one_gpu(own_args(tmp_path))).model_wrapped, DataParallel)
