"""What FSDP2 and DeepSpeed leave on each GPU, worked by hand for a published shape."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cotune.cli.plan.plan import show_memory
from cotune.engines.memory import read_shape
from cotune.engines.trl.memory_sharding import memory_over, sharding_named
from cotune.errors import ConfigError
from tests.cli.plan.test_memory import P_3B, QWEN2_3B, config_with, memory

LORA = {"rank": 16, "alpha": 32, "dropout": 0.0, "target_modules": ["q_proj"]}


def over(processes: int, engine_args: dict[str, Any], **changes: Any) -> Any:
    policy = {"path": "bundled:geo", "dtype": "float32", **changes.pop("policy", {})}
    training = {"engine_args": engine_args, "kl": 0.001}
    config = config_with(policy=policy, training=training, **changes)
    return memory_over(config, read_shape(QWEN2_3B), processes)


def zero(stage: int) -> dict[str, Any]:
    return {"deepspeed": {"zero_optimization": {"stage": stage}}}


def test_without_either_it_is_the_estimate_of_one_gpu() -> None:
    assert over(8, {}) == memory(
        QWEN2_3B, policy={"path": "bundled:geo", "dtype": "float32"}, training={"kl": 0.001}
    )


def test_fsdp2_by_hand() -> None:
    found = over(8, {"fsdp": True})
    assert found.weights == found.reference == found.gradients == P_3B * 4 // 8
    assert found.optimizer == P_3B * 8 // 8
    assert found.copies == P_3B * 2  # gathered
    assert found.buckets == 0
    assert over(16, {"fsdp": True}).held == pytest.approx(found.held / 2)


@pytest.mark.parametrize(("stage", "shares"), [(1, 1), (2, 8)])
def test_zero_by_hand(stage: int, shares: int) -> None:
    found = over(8, zero(stage))
    assert found.weights == found.reference == P_3B * 2
    assert found.optimizer == P_3B * 12 // 8
    assert found.gradients == P_3B * 2 // shares
    assert found.copies == 0
    assert found.buckets == 2 * 500_000_000 * 2


def test_adapters_are_what_is_trained() -> None:
    found = over(8, zero(2), policy={"lora": LORA})
    adapters = 36 * 16 * (2048 + 2048)
    assert found.trained == adapters
    assert found.weights == (P_3B + adapters) * 2
    assert found.optimizer == adapters * 12 // 8


def test_a_file_of_deepspeeds_is_read(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    asked = config_with(training={"engine_args": {"deepspeed": str(file)}})
    assert sharding_named(asked.training.engine_args) == "zero1"
    file.write_text("[")
    with pytest.raises(ConfigError, match=r"engine_args\.deepspeed: .*ds\.json"):
        sharding_named(asked.training.engine_args)


def test_the_plan_says_over_how_many() -> None:
    config = config_with(policy={"path": "bundled:geo"}, training={"engine_args": {"fsdp": True}})
    shown = []
    for processes in (1, 4):
        out = io.StringIO()
        show_memory(config, Console(file=out, width=200), processes)
        shown.append(out.getvalue())
    assert "fsdp2 over 1 process: see --processes" in shown[0]
    assert "fsdp2 over 4 processes." in shown[1]
