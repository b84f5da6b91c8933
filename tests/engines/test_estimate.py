"""Memory and hours of a run, worked by hand for published shapes, and what `cotune plan` prints of them."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cotune.cli.plan.plan import plan
from cotune.config.run_file import RunConfig, load_config, parse_config
from cotune.engines.engine import engine_of
from cotune.engines.estimate import (
    COMPUTE,
    DECODING,
    GPUS,
    Gpu,
    Layout,
    Memory,
    Shape,
    memory_of,
    read_shape,
    run_seconds,
    shape_of,
)
from cotune.policy.options import LoraOptions
from cotune.policy.policy_files import policy_path
from cotune.policy.precision import rounding_notice
from tests.run_files import tiny, write
from tests.shapes import CONFIGS, use_cache

QWEN2_3B, QWEN3_06B = CONFIGS["Qwen/Qwen2.5-3B"], CONFIGS["Qwen/Qwen3-0.6B"]
P_3B = 3_085_938_688
P_06B = 596_049_920
ALONE = Layout()


def config_with(**changes: Any) -> RunConfig:
    limits = {"prompt_tokens": 1000, "trajectory_tokens": 500, "observation_tokens": 100}
    training = {"micro_batch_size": 2, "rows_per_call": 8, **changes.pop("training", {})}
    sections = {"limits": limits, "training": training, **changes}
    return parse_config(tiny(Path("out"), sections), "test")


def memory(raw: dict[str, Any], layout: Layout = ALONE, **changes: Any) -> Memory:
    return memory_of(config_with(**changes), read_shape(raw), layout)


def part(estimate: Memory, label: str) -> tuple[int, int]:
    """The bytes of a part while sampling and while training."""
    (row,) = (row for name, row in estimate.rows.items() if name.startswith(label))
    return row


# ---- shapes


def test_parameters_by_hand() -> None:
    # Qwen2: q 2048² + 2048, k and v 2 × (2048 × 256 + 256), o 2048², 3 × 2048 × 11008, 2 × 2048.
    layer = 4_196_352 + 1_049_088 + 4_194_304 + 67_633_152 + 4_096
    assert 151_936 * 2048 + 36 * layer + 2048 == P_3B
    assert read_shape(QWEN2_3B).parameters == P_3B
    # Qwen3: q and o 1024 × 2048 each, k and v 1024², 3 × 1024 × 3072, 2 × 1024 + 2 × 128.
    layer = 2 * 2_097_152 + 2 * 1_048_576 + 9_437_184 + 2_304
    assert 151_936 * 1024 + 28 * layer + 1024 == P_06B
    assert read_shape(QWEN3_06B).parameters == P_06B
    untied = read_shape({**QWEN3_06B, "tie_word_embeddings": False})
    assert untied.parameters == P_06B + 151_936 * 1024


@pytest.mark.parametrize("name", ["ladder"])
def test_parameters_of_a_bundled_policy_are_those_of_its_weights(name: str) -> None:
    file = Path(policy_path(f"bundled:{name}")) / "model.safetensors"
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        header = json.loads(opened.read(length))
    counts = [
        int.__mul__(*entry["shape"]) if len(entry["shape"]) == 2 else entry["shape"][0]
        for key, entry in header.items()
        if key != "__metadata__"
    ]
    assert shape_of(f"bundled:{name}").parameters == sum(counts)


def test_lora_parameters_by_hand() -> None:
    shape = read_shape(QWEN3_06B)
    # r × (in + out): q and o 3072 each, k and v 2048 each, three of the MLP 4096 each.
    assert shape.lora_parameters(LoraOptions(rank=16)) == 28 * 16 * (6144 + 4096 + 12288)
    some = LoraOptions(rank=1, target_modules=("q_proj", "mlp.down_proj"))
    assert shape.lora_parameters(some) == 28 * (3072 + 4096)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_experts": 64}, "model_type qwen3 is a mixture of experts"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layers without attention"),
        ({"intermediate_size": None}, "cannot build a decoder of model_type qwen3"),
        ({"layer_types": [{}]}, "cannot build a decoder"),
        ({"layer_types": 3}, "cannot build a decoder"),
        ({"hidden_size": "large"}, "cannot build a decoder"),
        ({"vocab_size": -1}, "cannot build a decoder"),
        ({"text_config": [1], "num_hidden_layers": 10**9}, "1,000,000,000 layers"),
    ],
)
def test_other_architectures_are_not_guessed(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_shape({**QWEN3_06B, **changes})


def test_the_text_part_of_a_multimodal_policy() -> None:
    inner = {k: v for k, v in QWEN3_06B.items() if k != "tie_word_embeddings"}
    raw = {"model_type": "x", "tie_word_embeddings": True, "text_config": inner}
    assert read_shape(raw).parameters == P_06B


def test_a_name_is_looked_up_in_the_hubs_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cache(monkeypatch, tmp_path, "Qwen/Qwen3-4B")
    assert shape_of("Qwen/Qwen3-4B").parameters == 4_022_468_096
    for path in ("Qwen/Qwen3-0.6B", "./nowhere", "no such/name", "bundled:nothing"):
        with pytest.raises(ValueError, match="is not on this machine"):
            shape_of(path, ask_hub=True)


def test_only_the_config_is_fetched_from_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cache(monkeypatch, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_06B))
    fetched: list[tuple[str, ...]] = []

    def download(*asked: str) -> str:
        fetched.append(asked)
        return str(tmp_path / "config.json")

    monkeypatch.setattr("cotune.engines.estimate.only_local", lambda path, weights: False)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert shape_of("Qwen/Qwen3-0.6B", ask_hub=True).parameters == P_06B
    assert fetched == [("Qwen/Qwen3-0.6B", "config.json")]
    with pytest.raises(ValueError, match="is not on this machine"):
        shape_of("Qwen/Qwen3-0.6B")


# ---- memory


def test_whole_weights_in_float32_by_hand() -> None:
    found = memory(QWEN2_3B, policy={"dtype": "float32"}, training={"kl": 0.001})
    assert part(found, "weights") == part(found, "reference") == (4 * P_3B, 4 * P_3B)
    assert part(found, "optimizer") == (8 * P_3B, 8 * P_3B)
    assert part(found, "copies") == (2 * P_3B, 2 * P_3B)
    assert part(found, "gradients") == (0, 4 * P_3B)
    assert found.trained == found.parameters == P_3B
    # 2.5 × 8 rows × 1500 tokens × 36 layers × 2 heads × 128 × keys and values of 2 bytes.
    cache = int(2.5 * 8 * 1500 * 36 * 256 * 4)
    assert found.rows["KV cache, 8 rows of 1,500 tokens"] == (cache, 0)
    # 3000 tokens × (36 layers' inputs of 4 bytes, and one layer's 38 H + 12 I + 4 keys).
    activations = 3000 * (36 * 2048 * 4 + 38 * 2048 + 12 * 11008 + 4 * 256)
    assert found.rows["activations, 2 rows of 1,500 tokens"] == (0, activations)
    # A tile of 4096 × 32768 in bfloat16, the hidden states' gradient, the head's in float32.
    head = 2 * 4096 * 32768 + 3000 * 2048 * 4 + 151_936 * 2048 * 4
    assert part(found, "log-probabilities") == (0, head)
    held = 18 * P_3B
    assert found.training == held + 4 * P_3B + activations + head
    # A mask of each prompt as booleans and as a bias, and 22 bytes a logit while a token is drawn.
    draws = 8 * (1000**2 * 3 + 151_936 * 22)
    # Prompts of 1000 tokens: a layer's 20 H + 8 I, and two copies of keys and values, before the cache has grown.
    prompts = 8 * 1000 * (20 * 2048 + 8 * 11008 + 2 * 36 * 256 * 4) - cache
    assert part(found, "prompts") == (prompts + draws, 0)
    assert found.sampling == held + cache + prompts + draws


def test_lora_on_bfloat16_by_hand() -> None:
    found = memory(QWEN3_06B, policy={"lora": {"rank": 16}}, training={"kl": 0.001})
    adapters = 28 * 16 * 22528
    assert found.trained == adapters
    assert part(found, "weights")[0] == 2 * P_06B + 4 * adapters  # adapters in float32
    assert part(found, "optimizer")[1] == 8 * adapters
    assert part(found, "gradients")[1] == 4 * adapters
    assert part(found, "reference") == (0, 0)  # the base, its adapter off
    assert part(found, "copies") == (0, 0)


def test_the_engines_arguments_are_heeded() -> None:
    plain = memory(QWEN2_3B, policy={"dtype": "float32"})
    full = {"engine_args": {"bf16": False}}
    exact = memory(QWEN2_3B, policy={"dtype": "float32"}, training=full)
    assert part(exact, "copies") == (0, 0)
    assert part(exact, "KV cache")[0] == int(2.5 * 8 * 1500 * 36 * 256 * 8)
    kept = {"engine_args": {"gradient_checkpointing": False}}
    layer = 38 * 2048 + 12 * 11008 + 4 * 256
    whole = part(memory(QWEN2_3B, training=kept), "activations")[1]
    assert whole == 3000 * 36 * layer > part(plain, "activations")[1]
    vllm = memory(QWEN2_3B, Layout(share=0.3))
    assert part(vllm, "KV cache") == part(vllm, "prompts") == (0, 0)
    assert vllm.sampling is None
    precise = memory(QWEN2_3B, training={"precision": "fp32"})
    assert part(precise, "weights")[0] == 4 * P_3B


LORA = {"rank": 16, "alpha": 32, "dropout": 0.0, "target_modules": ["q_proj"]}


def spread(engine_args: dict[str, Any], processes: int = 8, **changes: Any) -> Memory:
    policy = {"path": "bundled:ladder", "dtype": "float32", **changes.pop("policy", {})}
    training = {"engine_args": engine_args, "kl": 0.001}
    config = config_with(policy=policy, training=training, **changes)
    layout = engine_of(config).layout(config, processes)
    return memory_of(config, read_shape(QWEN2_3B), layout)


def test_processes_that_share_nothing_exchange_gradients() -> None:
    alone, eight = spread({}, 1), spread({})
    assert part(eight, "gradients")[1] == 2 * part(alone, "gradients")[1]
    assert eight.sampling == alone.sampling


def test_fsdp_by_hand() -> None:
    found = spread({"fsdp": True})
    assert part(found, "weights") == part(found, "reference") == (P_3B * 4 // 8, P_3B * 4 // 8)
    assert part(found, "gradients")[1] == P_3B * 4 // 8
    assert part(found, "optimizer")[1] == P_3B * 8 // 8
    assert part(found, "copies") == (P_3B * 2, P_3B * 2)  # gathered
    half = {"path": "bundled:ladder", "dtype": "bfloat16"}
    assert spread({"fsdp": True}, policy=half) == found


def test_zero_by_hand() -> None:
    zero = {"deepspeed": {"zero_optimization": {"stage": 2}}}
    found = spread(zero)
    assert part(found, "weights") == part(found, "reference") == (P_3B * 2, P_3B * 2)
    assert part(found, "optimizer")[1] == P_3B * 12 // 8
    assert part(found, "gradients")[1] == P_3B * 2
    assert part(found, "copies") == (0, 0)
    adapters = 36 * 16 * (2048 + 2048)
    tuned = spread(zero, policy={"lora": LORA})
    assert tuned.trained == adapters
    assert part(tuned, "optimizer")[1] == adapters * 12 // 8


# ---- time

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
CACHED = 2 * 2 * 2 * 5  # bytes of a token: keys and values of 5, in 2 layers, in bfloat16
VLLM = Layout(share=0.5)


def timed(**sections: Any) -> RunConfig:
    """A batch of 12 rollouts: prompts of 8 tokens, then 2 turns of 4 and an observation of 4."""
    limits = {
        "prompt_tokens": 8, "turns": 2, "turn_tokens": 4, "observation_tokens": 4,
        "trajectory_tokens": 12,
    }  # fmt: skip
    training = {"questions_per_step": 3, "group_size": 4, "mini_batches": 1, "kl": 0}
    given = {"limits": limits, **sections, "training": training | sections.get("training", {})}
    return parse_config(tiny(Path("out"), given), "test")


def seconds(layout: Layout = ALONE, gpu: Gpu = GPU, fill: float = 1.0, **sections: Any) -> Any:
    """The seconds of two batches, and of the updates on them."""
    return run_seconds(timed(**sections), {"train": 24}, SHAPE, layout, gpu, fill)


@pytest.mark.parametrize(
    ("layout", "sections", "passes"),
    [
        (ALONE, {}, 4),  # forward, backward as two, recomputation
        (VLLM, {}, 5),  # and old log-probabilities
        (ALONE, {"training": {"mini_batches": 2}}, 5),
        (ALONE, {"training": {"kl": 0.1}}, 5),  # and the reference's
        (ALONE, {"training": {"engine_args": {"gradient_checkpointing": False}}}, 3),
        (ALONE, {"policy": {"lora": {}}}, 3),
        (ALONE, {"training": {"frozen": True}}, 0),
    ],
)
def test_passes_of_an_update(layout: Layout, sections: dict[str, Any], passes: int) -> None:
    # 24 rollouts of 20 tokens: two FLOPs a weight and token; queries times keys and weights times values, half
    # of them masked.
    row = 20 * 2 * 3200 + 2 * 2 * 20 * 20**2
    expected = passes * 24 * row / (1e6 * COMPUTE)
    assert seconds(layout, **sections)["updates"] == pytest.approx(expected)


def test_decoding() -> None:
    reading = (
        12 * (12 * 2 * 3200 + 2 * 2 * 20 * 12**2) / (1e6 * COMPUTE)
    )  # prompts and observations of 12 rollouts
    # vLLM holds (50,000 - 6,400 bytes) / (20 tokens × 40 bytes) = 54 rollouts: one call of 8 tokens. A step is
    # bound by FLOPs, or by the weights and caches, half of the trajectory long.
    flops, read = 12 * 2 * 3200, 2 * 3200 + 12 * (8 + 6) * CACHED
    expected = 2 * (8 * read / 1e5 / DECODING + reading)
    assert seconds(VLLM)["train"] == pytest.approx(expected)
    expected = 2 * (8 * flops / 1e6 / DECODING + reading)
    assert seconds(VLLM, Gpu(1e6, 1e9, 1e5))["train"] == pytest.approx(expected)
    # Of a GPU of which 13,600 bytes are vLLM's it holds 9 rollouts: two calls.
    tight = seconds(Layout(share=0.136), Gpu(1e9, 1e9, 1e5))["train"]
    # A GPU that takes no time: vLLM schedules once a step, and the trainer's process launches 2 layers.
    fast = Gpu(1e15, 1e15, 1e5)
    assert tight > seconds(Layout(share=0.136), fast)["train"] == pytest.approx(2 * 2 * 8 * 8e-3)
    rows = {"training": {"rows_per_call": 4}}  # three calls
    assert seconds(ALONE, fast, **rows)["train"] == pytest.approx(2 * 3 * 8 * 2 * 0.9e-3)
    lora = seconds(ALONE, fast, policy={"lora": {}}, **rows)["train"]
    assert lora == pytest.approx(2.5 * 2 * 3 * 8 * 2 * 0.9e-3)
    # Two GPUs share the rollouts; half as long rollouts take half as many steps.
    assert seconds(Layout(2), fast, **rows)["train"] == pytest.approx(2 * 2 * 8 * 2 * 0.9e-3)
    assert seconds(ALONE, fast, 0.5, **rows)["train"] == pytest.approx(2 * 3 * 4 * 2 * 0.9e-3)


@pytest.mark.parametrize(
    ("training", "layout", "why"),
    [
        ({"precision": "fp32"}, ALONE, "for bfloat16"),
        ({"engine_args": {"bf16": False}}, ALONE, "for bfloat16"),
        ({}, Layout(share=0.07), "7% of 0 GB, does not hold the weights and a rollout"),
        ({}, Layout(share=0.0), "on GPUs that the run file does not name"),
    ],
)
def test_what_is_not_projected(training: dict[str, Any], layout: Layout, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        seconds(layout, training=training)


def test_a_run_that_others_have_timed() -> None:
    """Search-R1 with 3B on 8 × H100: 200 steps took 2 to 3 or 6 to 7 hours (its issue 1 on GitHub)."""
    file = Path(__file__).parents[2] / "configs" / "inspo-qwen2.5-7b-verl.yaml"
    changes = ("policy.path=Qwen/Qwen2.5-3B", "limits.turns=4", "limits.trajectory_tokens=3584")
    given, shape = load_config(file, assignments=changes), read_shape(QWEN2_3B)
    layout, rollouts = Layout(8, shards=8, share=0.6), {"train": 200 * 2560}
    hours = sum(run_seconds(given, rollouts, shape, layout, GPUS["h100"], 0.25).values()) / 3600
    assert 2 < hours < 7


# ---- what the command prints


def printed(folder: Path, raw: dict[str, Any], processes: int = 1, **changes: Any) -> str:
    """What `plan` prints of a policy in a folder."""
    (folder / "config.json").write_text(json.dumps(raw))
    policy = {"path": str(folder), **changes.pop("policy", {})}
    config = config_with(policy=policy, **changes)
    file = write(folder / "run.yaml", config.model_dump(mode="json"))
    out = io.StringIO()
    plan(file, Console(file=out, width=200), (), processes, "9,3,6", "h100")
    return out.getvalue()


def test_the_table(tmp_path: Path) -> None:
    text = printed(tmp_path, QWEN2_3B, policy={"dtype": "float32"}, training={"kl": 0.001})
    rows = {line.split("│")[0].strip(): line for line in text.splitlines() if "│" in line}
    assert rows["weights"].count("11.5 GiB") == 2
    assert rows["reference policy"].count("11.5 GiB") == 2
    assert rows["optimizer (AdamW)"].count("23.0 GiB") == 2
    # 2.5 × 8 × 1500 × 36 × 256 × 4 bytes.
    assert "1.0 GiB" in rows["KV cache, 8 rows of 1,500 tokens"]
    assert rows["gradients"].count("11.5 GiB") == 1
    assert "Trained: 3,085,938,688 parameters on 1 GPU; each holds all of it" in text
    assert "Hours on 1 × h100 of 80 GB, projected, not measured" in text
    assert "notice" not in text


def test_what_has_no_bytes_has_no_row_and_vllm_no_sum(tmp_path: Path) -> None:
    text = printed(tmp_path, QWEN3_06B, training={"engine_args": {"use_vllm": True}})
    assert "reference" not in text
    assert "KV cache" not in text
    assert "vLLM takes 30% of each GPU while it samples" in text


def test_what_is_spread_is_said(tmp_path: Path) -> None:
    fsdp = {"engine_args": {"fsdp": True}}
    text = printed(tmp_path, QWEN3_06B, 4, training=fsdp, policy={"dtype": "float32"})
    assert "on 4 GPUs; weights, gradients and moments are spread over 4." in text


@pytest.mark.parametrize(("test_questions", "rows"), [(3, 24), (40, 40), (500, 64)])
def test_rows_at_once_are_a_steps_or_an_evaluations(
    tmp_path: Path, test_questions: int, rows: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN2_3B))
    config = config_with(
        policy={"path": str(tmp_path)},
        strategy={"kind": "static"},
        training={
            "steps": 100,
            "questions_per_step": 6,
            "group_size": 4,
            "mini_batches": 1,
            "rows_per_call": 64,
        },
        evaluation={"every": 0, "before": False},
    )
    out = io.StringIO()
    file = write(tmp_path / "run.yaml", config.model_dump(mode="json"))
    plan(file, Console(file=out, width=120), questions=f"9,3,{test_questions}", gpu="h100")
    assert f"KV cache, {rows} rows of" in out.getvalue()


def test_an_unknown_architecture_is_said(tmp_path: Path) -> None:
    text = printed(tmp_path, {**QWEN3_06B, "num_experts": 8})
    assert "memory and time: unknown, model_type qwen3 is a mixture of experts\n" in text


def test_steps_that_bfloat16_loses_are_told(tmp_path: Path) -> None:
    notice = rounding_notice("bfloat16", 5e-7)
    assert notice is not None
    assert "for weights above 0.00026" in notice
    assert rounding_notice("float16", 5e-7) is not None
    assert rounding_notice("float32", 5e-7) is None
    assert rounding_notice("bfloat16", 1e-4) is None
    small = {"learning_rate": 5e-7}
    assert "notice: weights are trained in bfloat16" in printed(tmp_path, QWEN3_06B, training=small)
    lora = {"lora": {}}
    assert "notice" not in printed(tmp_path, QWEN3_06B, training=small, policy=lora)
    assert "notice" not in printed(tmp_path, QWEN3_06B, training={"learning_rate": 1e-3})
