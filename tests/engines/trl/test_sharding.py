"""What of FSDP and DeepSpeed is refused, and what a resume compares."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from cotune.engines.trl import sharding
from cotune.engines.trl.sharding import (
    check_sharding,
    check_spread,
    restore_weights,
    sharding_of,
    spread,
)
from cotune.errors import ConfigError
from tests.engines.trl.setup import start
from tests.policy.tiny import tiny_model, tiny_tokenizer


def trainer_with(**state: Any) -> Any:
    return SimpleNamespace(accelerator=SimpleNamespace(state=SimpleNamespace(**state)))


def fsdp(version: int, efficient_loading: bool = False) -> Any:
    plugin = SimpleNamespace(fsdp_version=version, cpu_ram_efficient_loading=efficient_loading)
    return trainer_with(deepspeed_plugin=None, fsdp_plugin=plugin)


def zero(stage: int) -> Any:
    return trainer_with(deepspeed_plugin=SimpleNamespace(zero_stage=stage))


ALONE = trainer_with(deepspeed_plugin=None)
FSDP2 = fsdp(2)
ZERO2 = zero(2)


def refused(line: str | None) -> Any:
    """Expect a refusal, if there is a line of it."""
    return nullcontext() if line is None else pytest.raises(ConfigError, match=line)


@pytest.mark.parametrize(
    ("trainer", "line"),
    [
        (ALONE, None),
        (FSDP2, None),
        (zero(1), None),
        (ZERO2, None),
        (fsdp(1), "fsdp1; expected FSDP version 2"),
        (zero(3), "zero3; expected .* ZeRO stage 1 or 2"),
        (fsdp(2, efficient_loading=True), "cpu_ram_efficient_loading: false"),
    ],
)
def test_what_no_process_could_sample_from_is_refused(trainer: Any, line: str | None) -> None:
    with refused(line):
        check_sharding(trainer)


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
    with refused(line):
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
