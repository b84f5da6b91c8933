"""Asking for vLLM: in GRPOConfig and in a run file, and what is refused before anything is written."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

import cotune.engines.trl.checks as checks
from cotune.config.run_file import parse_config
from cotune.engines.trl.checks import check_args
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


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "is_vllm_available", lambda: True)


def test_vllm_that_is_not_installed_is_named_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "is_vllm_available", lambda: False)
    check_args(config(tmp_path))
    with pytest.raises(ConfigError) as error:
        check_args(config(tmp_path, use_vllm=True))
    assert str(error.value) == (
        "GRPOConfig.use_vllm is True, but vllm is not installed: pip install 'trl[vllm]' into this "
        "environment, or set use_vllm=False"
    )


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_both_modes_pass(tmp_path: Path, mode: str) -> None:
    # The size of a server's engine says nothing of the processes here.
    shared = 2 if mode == "server" else 1
    sleepy = {"vllm_enable_sleep_mode": True, "vllm_tensor_parallel_size": shared}
    check_args(config(tmp_path, use_vllm=True, vllm_mode=mode, **sleepy))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vllm_mode": "offline"}, "vllm_mode is 'offline'; expected 'colocate' or 'server'"),
        ({"vllm_tensor_parallel_size": 2}, "vllm_tensor_parallel_size is 2; expected a divisor of the 1 processes that train"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_cannot_work_is_refused_in_a_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        check_args(config(tmp_path, use_vllm=True, **changes))
    assert str(error.value).startswith(f"GRPOConfig.{message}")
    assert "\n" not in str(error.value)


def test_vllm_stays_awake_under_fsdp2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleepy = {"use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": True}
    trainer: Any = SimpleNamespace(args=config(tmp_path, **sleepy), model=torch.nn.Linear(1, 1))
    monkeypatch.setattr(checks, "sharding_of", lambda trainer: "none")
    checks.check_trainer(trainer, StaticStrategy("abc"))
    monkeypatch.setattr(checks, "sharding_of", lambda trainer: "fsdp2")
    with pytest.raises(ConfigError, match="set vllm_enable_sleep_mode=False"):
        checks.check_trainer(trainer, StaticStrategy("abc"))


@pytest.mark.usefixtures("installed")
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
    for allowed in (200, -1, None):  # -1: vLLM chooses
        assert args_of(vllm_max_model_length=allowed).vllm_max_model_length == allowed
    with pytest.raises(ConfigError, match="vllm_max_model_length is 159, but limits"):
        args_of(vllm_max_model_length=159)
    assert args_of(vllm_max_model_length=9, vllm_mode="server").vllm_max_model_length == 9
