"""What training holds in memory, worked by hand for published shapes, and what `cotune plan` prints of it."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import AutoConfig

from cotune.cli.plan import plan
from cotune.config.run_file import RunConfig, parse_config
from cotune.engines.engine import engine_of
from cotune.engines.estimate import Memory, memory_of, read_shape, shape_of
from cotune.policy.policy_files import PolicyConfig
from cotune.policy.precision import rounding_notice
from tests.run_files import tiny, write
from tests.shapes import CONFIGS, use_cache

QWEN2_3B, QWEN3_06B = CONFIGS["Qwen/Qwen2.5-3B"], CONFIGS["Qwen/Qwen3-0.6B"]
P_3B = 3_085_938_688
P_06B = 596_049_920


def config_with(**changes: Any) -> RunConfig:
    return parse_config(tiny(Path("out"), changes), "test")


def memory(raw: dict[str, Any], **changes: Any) -> Memory:
    config = config_with(**changes)
    shape = read_shape(AutoConfig.for_model(**raw), config.policy.lora)
    return memory_of(config, shape, engine_of(config).loaded_dtype(config))


def test_whole_weights_by_hand() -> None:
    # q 2048² + 2048, k and v 2 × (2048 × 256 + 256), o 2048², 3 × 2048 × 11008, 2 × 2048.
    layer = 4_196_352 + 1_049_088 + 4_194_304 + 67_633_152 + 4_096
    assert 151_936 * 2048 + 36 * layer + 2048 == P_3B
    found = memory(QWEN2_3B, policy={"dtype": "float32"}, training={"kl": 0.001})
    assert found.trained == P_3B
    assert list(found.parts.values()) == [4 * P_3B, 4 * P_3B, 4 * P_3B, 8 * P_3B]
    # The checkpoint's type, without a reference.
    found = memory(QWEN2_3B, training={"kl": 0})
    assert list(found.parts.values()) == [2 * P_3B, 0, 2 * P_3B, 4 * P_3B]
    for training in ({"precision": "fp32"}, {"engine_args": {"fsdp": True}}):
        assert memory(QWEN2_3B, training=training).dtype == "float32"


def test_adapters_by_hand() -> None:
    found = memory(QWEN3_06B, policy={"lora": {"rank": 16}}, training={"kl": 0.001})
    # r × (in + out): q and o 3072 each, k and v 2048 each, three of the MLP 4096 each.
    adapters = 28 * 16 * (6144 + 4096 + 12288)
    assert found.trained == adapters
    # In float32; the reference is the base, its adapter off.
    expected = [2 * P_06B + 4 * adapters, 0, 4 * adapters, 8 * adapters]
    assert list(found.parts.values()) == expected
    some = {"rank": 1, "target_modules": ["q_proj", "mlp.down_proj"]}
    assert memory(QWEN3_06B, policy={"lora": some}).trained == 28 * (3072 + 4096)


def test_a_name_is_looked_up_in_the_hubs_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cache(monkeypatch, tmp_path, "Qwen/Qwen3-4B")
    assert shape_of(PolicyConfig(path="Qwen/Qwen3-4B")).parameters == 4_022_468_096
    for path in ("Qwen/Qwen3-0.6B", "./nowhere", "no such/name", "bundled:nothing"):
        with pytest.raises(ValueError, match=r"policy\.path"):
            shape_of(PolicyConfig(path=path))


def test_what_the_command_prints(tmp_path: Path) -> None:
    def printed(raw: dict[str, Any], **changes: Any) -> str:
        (tmp_path / "config.json").write_text(json.dumps(raw))
        policy = {"path": str(tmp_path), **changes.pop("policy", {})}
        config = config_with(policy=policy, **changes)
        file = write(tmp_path / "run.yaml", config.model_dump(mode="json"))
        out = io.StringIO()
        plan(file, Console(file=out, width=400), questions="9,3,6")
        return out.getvalue()

    text = printed(QWEN2_3B, policy={"dtype": "float32"}, training={"kl": 0})
    assert "memory: 46.0 GiB (weights 11.5 GiB, gradients 11.5 GiB, AdamW's moments 23.0" in text
    assert "3,085,938,688 parameters are trained" in text
    assert "notice" not in text
    unknown = {**QWEN3_06B, "vocab_size": -1}
    assert "memory: unknown, transformers cannot build a decoder of model_type qwen3" in printed(
        unknown
    )
    # Steps that bfloat16 loses are told.
    small = {"learning_rate": 5e-7}
    assert "notice: weights are trained in bfloat16" in printed(QWEN3_06B, training=small)
    assert "notice" not in printed(QWEN3_06B, training=small, policy={"lora": {}})
    notice = rounding_notice("bfloat16", 5e-7)
    assert notice is not None
    assert "for weights above 0.00026" in notice
    assert rounding_notice("float16", 5e-7) is not None
    assert rounding_notice("float32", 5e-7) is None
    assert rounding_notice("bfloat16", 1e-4) is None
