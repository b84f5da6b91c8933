"""What of FSDP and DeepSpeed is refused, and what a resume compares."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from accelerate.utils import DistributedType

from cotune.config.run_file import parse_config
from cotune.engines.trl import sharding
from cotune.engines.trl.checks import check_args
from cotune.engines.trl.run_file_setup import grpo_config
from cotune.engines.trl.sharding import (
    check_sharding,
    check_spread,
    restore_weights,
    sharding_of,
    spread,
)
from cotune.errors import ConfigError
from tests.engines.trl.setup import config, start
from tests.policy.tiny import tiny_model, tiny_tokenizer
from tests.run_files import tiny


def on_gpus(args: Any) -> Any:
    """The arguments as one of several processes with a GPU each has them."""
    args.distributed_state = SimpleNamespace(distributed_type=DistributedType.MULTI_GPU)
    return args


def refused(args: Any) -> str:
    with pytest.raises(ConfigError) as error:
        check_sharding(args)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.filterwarnings("ignore:FSDP1:FutureWarning")
@pytest.mark.parametrize(
    ("field", "value", "fix"),
    [
        ("version", 1, "fsdp_config.version: 2"),
        ("fsdp_version", 1, "fsdp_config.version: 2"),
        ("cpu_ram_efficient_loading", True, "cpu_ram_efficient_loading: false"),
    ],
)
def test_fields_of_fsdp_that_are_refused(tmp_path: Path, field: str, value: Any, fix: str) -> None:
    assert fix in refused(on_gpus(config(tmp_path, fsdp=True, fsdp_config={field: value})))


def test_what_accelerate_launch_configured_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = on_gpus(config(tmp_path))
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert "version is 1" in refused(args)  # accelerate's default
    monkeypatch.setenv("FSDP_VERSION", "2")
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
    assert "fsdp_cpu_ram_efficient_loading: false" in refused(args)
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "false")
    check_sharding(args)
    monkeypatch.setenv("ACCELERATE_USE_MEGATRON_LM", "true")
    assert "ACCELERATE_USE_MEGATRON_LM" in refused(args)


def test_where_accelerate_would_pass_it_over_fsdp_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="on a CPU or in one process"):
        check_args(config(tmp_path, fsdp=True))


@pytest.mark.parametrize(("stage", "taken"), [(1, True), (2, True), (3, False)])
def test_the_stages_of_zero(tmp_path: Path, stage: int, taken: bool) -> None:
    args: Any = config(tmp_path)
    args.deepspeed_plugin = SimpleNamespace(zero_stage=stage)
    if taken:
        check_sharding(args)
    else:
        assert "expected 1 or 2" in refused(args)


def test_a_run_file_needs_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotune.utils.packages.installed", lambda name: None)
    changes = {"training": {"engine_args": {"deepspeed": "zero2.json"}}}
    run = parse_config(tiny(Path("out"), changes), "test")
    with pytest.raises(ConfigError, match=r"pip install 'cotune\[deepspeed\]'"):
        grpo_config(run, tmp_path)


def trainer_with(**state: Any) -> Any:
    return SimpleNamespace(accelerator=SimpleNamespace(state=SimpleNamespace(**state)))


ALONE = trainer_with(deepspeed_plugin=None)
FSDP2 = trainer_with(deepspeed_plugin=None, fsdp_plugin=SimpleNamespace(fsdp_version=2))
ZERO2 = trainer_with(deepspeed_plugin=SimpleNamespace(zero_stage=2))


def test_what_is_saved_of_how_training_was_spread() -> None:
    assert [sharding_of(t) for t in (ALONE, FSDP2, ZERO2)] == ["none", "fsdp2", "zero2"]
    assert spread(FSDP2) == {"sharding": "fsdp2", "processes": 1}


@pytest.mark.parametrize(
    ("saved", "trainer", "line"),
    [
        ({}, ALONE, None),
        ({"sharding": "none", "processes": 8}, ALONE, None),  # DDP's optimizer is whole
        ({"sharding": "fsdp2", "processes": 8}, FSDP2, None),  # its shards are laid out anew
        ({"sharding": "zero2", "processes": 1}, ZERO2, None),
        ({"sharding": "zero2", "processes": 8}, ZERO2, "by 8 processes"),
        ({"sharding": "zero2", "processes": 1}, ALONE, "sharding zero2, this one with none"),
        ({}, FSDP2, "sharding none, this one with fsdp2"),
    ],
)
def test_a_resume_that_could_not_read_the_optimizer_is_refused(
    saved: dict[str, Any], trainer: Any, line: str | None
) -> None:
    if line is None:
        check_spread(saved, trainer)
        return
    with pytest.raises(ConfigError, match=line):
        check_spread(saved, trainer)


def test_a_run_in_one_process_says_so_in_its_state(tmp_path: Path) -> None:
    joint = start(tmp_path).joint
    trainer = start(tmp_path / "other").trainer
    trainer.reward_funcs = joint.reward_funcs
    joint.bind(trainer)
    state = joint.state_dict()
    assert (state["sharding"], state["processes"]) == ("none", 1)
    with pytest.raises(ConfigError, match="sharding zero1"):
        joint.load_state_dict({**state, "sharding": "zero1"})


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (SimpleNamespace(_fsdp_param_groups=[1, 2]), [1, 2]),
        (SimpleNamespace(_fsdp_param_group=3), [3]),
        (SimpleNamespace(_fsdp_param_group=None), []),
    ],
)
def test_parameter_groups_of_newer_and_older_torch(state: Any, expected: list[int]) -> None:
    module: Any = SimpleNamespace(_get_fsdp_state=lambda: state)
    assert sharding._parameter_groups(module) == expected


def test_the_shards_of_a_checkpoint_are_put_together(tmp_path: Path) -> None:
    kept, other = (tiny_model(tiny_tokenizer(), seed) for seed in (0, 1))
    dcp.save(
        {"model": kept.state_dict()},
        storage_writer=dcp.FileSystemWriter(tmp_path / "pytorch_model_fsdp_0"),
        no_dist=True,
    )
    restore_weights(other, tmp_path)
    for mine, theirs in zip(other.parameters(), kept.parameters(), strict=True):
        assert torch.equal(mine, theirs)
