"""Asking for vLLM: in GRPOConfig and in a run file, and what is refused before anything is written."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
import torch

from cotune.config.run_file import parse_config
from cotune.engines.trl.checks import check_args, check_trainer
from cotune.engines.trl.run_file_setup import grpo_config
from cotune.errors import ConfigError
from cotune.methods.static import StaticStrategy
from tests.engines.trl.setup import config
from tests.run_files import tiny

ASKED = {
    "use_vllm": True,
    "vllm_mode": "server",
    "vllm_server_base_url": "http://localhost:8000",
    "vllm_max_model_length": 2048,
}


def test_vllm_stays_awake_under_fsdp2(tmp_path: Path) -> None:
    sleepy = {"use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": True}
    trainers = [
        SimpleNamespace(
            args=config(tmp_path, **sleepy),
            model=torch.nn.Linear(1, 1),
            accelerator=SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)),
        )
        for plugin in (None, SimpleNamespace(fsdp_version=2, cpu_ram_efficient_loading=False))
    ]
    alone, sharded = cast("list[Any]", trainers)
    check_trainer(alone, StaticStrategy("abc"))
    with pytest.raises(ConfigError, match="set vllm_enable_sleep_mode=False"):
        check_trainer(sharded, StaticStrategy("abc"))


def test_a_run_file_asks_for_vllm_by_engine_args(tmp_path: Path) -> None:
    run = parse_config(tiny(tmp_path, {"training": {"engine_args": ASKED}}), "test")
    with mock.patch.dict(os.environ, {"WORLD_SIZE": "1"}):
        args = grpo_config(run, tmp_path)
    assert {name: getattr(args, name) for name in ASKED} == ASKED
    check_args(args)


def test_vllm_reserves_memory_for_the_longest_episode(tmp_path: Path) -> None:
    """Its own default is the policy's whole context, for which a GPU may have no memory."""
    limits = {"prompt_tokens": 96, "trajectory_tokens": 64}

    def args_of(**given: Any) -> Any:
        asked = {"limits": limits, "training": {"engine_args": {"use_vllm": True, **given}}}
        with mock.patch.dict(os.environ, {"WORLD_SIZE": "1"}):
            return grpo_config(parse_config(tiny(tmp_path, asked), "test"), tmp_path)

    assert args_of().vllm_max_model_length == 160
    assert args_of(vllm_max_model_length=200).vllm_max_model_length == 200
