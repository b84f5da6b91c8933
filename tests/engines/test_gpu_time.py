"""The time of a run on GPUs, against numbers worked by hand for a small shape and a round GPU."""

from pathlib import Path
from typing import Any

import pytest

from cotune.config.run_file import RunConfig, parse_config
from cotune.engines.gpu_time import (
    GPUS,
    Efficiency,
    Gpu,
    Layout,
    batch_seconds,
    decode_seconds,
    forward_flops,
    gpu_seconds,
    rows_at_once,
    update_passes,
    weights_used,
)
from cotune.engines.memory import Shape, find_config, read_shape
from tests.run_files import tiny

# 2 layers of 600 weights, a head of 100 × 10, and an embedding of its own that is looked up.
SHAPE = Shape(
    parameters=3200,
    linear=[("layers.0.up", 10, 60), ("layers.1.up", 10, 60)],
    layers=2,
    hidden=10,
    intermediate=60,
    query_width=20,
    key_width=5,
    vocabulary=100,
    dtype="bfloat16",
)
GPU = Gpu(flops=1e6, bandwidth=1e5, memory=1e5)
FULL = Efficiency(compute=1.0, decoding=1.0, launch=0.0, schedule=0.0)
CACHED = 2 * 2 * 2 * 5  # bytes of a token: keys and values of 5, in 2 layers, in bfloat16


def config(tmp_path: Path, **sections: Any) -> RunConfig:
    limits = {
        "prompt_tokens": 8, "turns": 2, "turn_tokens": 4, "observation_tokens": 4,
        "trajectory_tokens": 12,
    }  # fmt: skip
    training = {"questions_per_step": 3, "group_size": 4, "mini_batches": 1, "kl": 0}
    given = {"limits": limits, **sections, "training": training | sections.get("training", {})}
    return parse_config(tiny(tmp_path / "run", given), "test")


def test_flops_of_a_forward_pass() -> None:
    assert weights_used(SHAPE) == 2 * 600 + 1000
    # 2 FLOPs a weight and token; queries times keys and weights times values, half of them masked.
    assert forward_flops(SHAPE, 10) == 2 * 2200 * 10 + 2 * 2 * 20 * 10**2
    raw = find_config("Qwen/Qwen2.5-7B")
    assert raw is not None
    # 7.62 B parameters, of which the embedding of 152,064 × 3,584 is looked up, and biases and norms.
    assert (
        weights_used(read_shape(raw)) == 7_615_616_512 - 152_064 * 3584 - 28 * (4608 + 7168) - 3584
    )


def test_passes_of_an_update(tmp_path: Path) -> None:
    alone, vllm = Layout(1), Layout(1, 0.5)
    # Forward, backward as two, recomputation.
    assert update_passes(config(tmp_path), alone) == 4
    assert update_passes(config(tmp_path), vllm) == 5  # and old log-probabilities
    assert update_passes(config(tmp_path, training={"mini_batches": 2}), alone) == 5
    assert update_passes(config(tmp_path, training={"kl": 0.1}), alone) == 5  # and the reference's
    plain = {"engine_args": {"gradient_checkpointing": False}}
    assert update_passes(config(tmp_path, training=plain), alone) == 3
    assert update_passes(config(tmp_path, policy={"lora": {}}), alone) == 3
    # The teacher's forward pass, and the policy's for its loss.
    taught = {"kind": "p2o", "distillation": {"kind": "filtered"}, "successes_below": 1}
    assert update_passes(config(tmp_path, strategy=taught), alone) == 4 + 1 + 4


def test_a_decoding_step() -> None:
    one = Layout(1, 0.5)
    # Bound by memory: the weights, and the caches of 2 rows with 10 tokens each.
    read = 2 * 3200 + 2 * 10 * CACHED
    assert decode_seconds(SHAPE, GPU, FULL, one, 2, 10) == pytest.approx(read / 1e5)
    # Bound by FLOPs with many rows: 100 × (2 × 2,200 + 4 × 2 × 20 × 10).
    assert decode_seconds(SHAPE, GPU, FULL, one, 100, 10) == pytest.approx(100 * 6000 / 1e6)
    half = Efficiency(1.0, 0.5, 0.2, schedule=0.0)
    assert decode_seconds(SHAPE, GPU, half, one, 2, 10) == pytest.approx(2 * read / 1e5)
    two = Layout(2, 0.5, split=2)
    assert decode_seconds(SHAPE, GPU, FULL, two, 2, 10) == pytest.approx(read / 2 / 1e5)
    # In the trainer's own process at least the launches of 2 layers.
    assert decode_seconds(SHAPE, GPU, half, Layout(1), 2, 10) == pytest.approx(0.4)
    assert decode_seconds(SHAPE, GPU, half, Layout(1), 2, 10, lora=True) == pytest.approx(1.0)
    # vLLM schedules once a step, whatever the layers.
    slow = Efficiency(1.0, 0.5, 0.2, schedule=3.0)
    assert decode_seconds(SHAPE, GPU, slow, one, 2, 10) == 3.0


def test_rows_at_once(tmp_path: Path) -> None:
    given = config(tmp_path, training={"rows_per_call": 7})
    assert rows_at_once(given, SHAPE, GPU, Layout(1), given.limits) == 7
    # (20,000 - 6,400 bytes) / (20 tokens × 40 bytes)
    assert rows_at_once(given, SHAPE, GPU, Layout(1, 0.2), given.limits) == 17
    with pytest.raises(ValueError, match="7% of 0 GB, does not hold the weights and a rollout"):
        rows_at_once(given, SHAPE, GPU, Layout(1, 0.07), given.limits)


def test_a_batch_and_a_run(tmp_path: Path) -> None:
    given = config(tmp_path, training={"rows_per_call": 4})
    use, layout = Efficiency(0.5, 1.0, 0.05, schedule=0.0), Layout(2)
    # 12 rollouts on 2 GPUs: 2 calls each, of 2 turns of 4 tokens at 0.1 s, bound by launches; and 6 prompts
    # and observations of 8 + 12 - 8 tokens.
    prompts = 6 * forward_flops(SHAPE, 12) / 0.5e6
    batch = 2 * 8 * 0.1 + prompts
    assert batch_seconds(given, SHAPE, GPU, use, layout, given.limits) == pytest.approx(batch)
    found = gpu_seconds(given, {"train": 24, "evaluate": 6}, SHAPE, layout, GPU, use)
    # 24 rollouts of 20 tokens, 4 passes, on 2 GPUs.
    updates = 24 * 4 * forward_flops(SHAPE, 20) / (2 * 0.5e6)
    assert found == pytest.approx({"train": 2 * batch, "evaluate": batch / 2, "updates": updates})
    half = gpu_seconds(given, {"train": 24}, SHAPE, layout, GPU, use, fill=0.5)
    assert half["updates"] == pytest.approx(24 * 4 * forward_flops(SHAPE, 10) / (2 * 0.5e6))
    assert half["train"] == pytest.approx(2 * (2 * 4 * 0.1 + 6 * forward_flops(SHAPE, 6) / 0.5e6))
    frozen = config(tmp_path, training={"frozen": True})
    assert gpu_seconds(frozen, {"train": 24}, SHAPE, layout, GPU, use)["updates"] == 0


def test_groups_that_are_replaced_are_not_trained_on(tmp_path: Path) -> None:
    plain = {"kind": "static"}
    given = config(tmp_path, strategy=plain, training={"steps": 2, "resample_rounds": 3})
    found = gpu_seconds(given, {"train": 4 * 24}, SHAPE, Layout(1), GPU, FULL)
    assert found["updates"] == pytest.approx(24 * 4 * forward_flops(SHAPE, 20) / 1e6)


def test_what_is_not_projected(tmp_path: Path) -> None:
    precise = config(tmp_path, training={"precision": "fp32"})
    tuned = config(tmp_path, strategy={"kind": "sft"})
    whole = config(tmp_path, training={"engine_args": {"bf16": False}})
    for given, why in (
        (precise, "precision is fp32"),
        (whole, "engine_args.bf16 is false"),
        (tuned, "strategy.kind sft"),
    ):
        with pytest.raises(ValueError, match=why):
            gpu_seconds(given, {"train": 24}, SHAPE, Layout(1), GPU, FULL)


def test_a_run_that_others_have_timed() -> None:
    """Search-R1 with 3B on 8 × H100: 200 steps took 2 to 3 or 6 to 7 hours (its issue 1 on GitHub)."""
    from cotune.config.run_file import load_config
    from cotune.engines.gpu_time import FAST, SLOW

    file = Path(__file__).parents[2] / "configs" / "inspo-qwen2.5-7b-verl.yaml"
    changes = ("policy.path=Qwen/Qwen2.5-3B", "limits.turns=4", "limits.trajectory_tokens=3584")
    given = load_config(file, assignments=changes)
    raw = find_config("Qwen/Qwen2.5-3B")
    assert raw is not None
    fast, slow = (
        sum(
            gpu_seconds(
                given,
                {"train": 200 * 2560},
                read_shape(raw),
                Layout(8, 0.6),
                GPUS["h100"],
                use,
                0.25,
            ).values()
        )
        / 3600
        for use in (FAST, SLOW)
    )
    assert 3 < fast < 7 < slow < 14
