"""Memory estimates, worked by hand for two published shapes, and what `cotune plan` says of them."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cotune.cli.plan.plan import plan, show_memory
from cotune.config.run_file import RunConfig, parse_config
from cotune.engines.memory import Memory, cpu_memory, find_config, memory_of, read_shape
from cotune.policy.options import LoraOptions
from cotune.policy.policy_files import policy_path
from cotune.policy.update_rounding import rounding_notice
from tests.run_files import tiny, write

# config.json of Qwen/Qwen2.5-3B-Instruct and Qwen/Qwen3-0.6B, as far as it is read.
QWEN2_3B: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
QWEN3_06B: dict[str, Any] = {
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
P_3B = 3_085_938_688
P_06B = 596_049_920


def config_with(**changes: Any) -> RunConfig:
    limits = {"prompt_tokens": 1000, "trajectory_tokens": 500, "observation_tokens": 100}
    training = {"micro_batch_size": 2, "rows_per_call": 8, **changes.pop("training", {})}
    sections = {"limits": limits, "training": training, **changes}
    return parse_config(tiny(Path("out"), sections), "test")


def memory(raw: dict[str, Any], **changes: Any) -> Memory:
    return memory_of(config_with(**changes), read_shape(raw))


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


@pytest.mark.parametrize("name", ["geo", "arithmetic"])
def test_parameters_of_the_bundled_policies_are_those_of_their_weights(name: str) -> None:
    file = Path(policy_path(f"bundled:{name}")) / "model.safetensors"
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        header = json.loads(opened.read(length))
    counts = [
        int.__mul__(*entry["shape"]) if len(entry["shape"]) == 2 else entry["shape"][0]
        for key, entry in header.items()
        if key != "__metadata__"
    ]
    raw = find_config(f"bundled:{name}")
    assert raw is not None
    assert read_shape(raw).parameters == sum(counts)


def test_lora_parameters_by_hand() -> None:
    shape = read_shape(QWEN3_06B)
    # r × (in + out): q and o 3072 each, k and v 2048 each, three of the MLP 4096 each.
    assert shape.lora_parameters(LoraOptions(rank=16)) == 28 * 16 * (6144 + 4096 + 12288)
    some = LoraOptions(rank=1, target_modules=("q_proj", "mlp.down_proj"))
    assert shape.lora_parameters(some) == 28 * (3072 + 4096)


def test_whole_weights_in_float32_by_hand() -> None:
    found = memory(QWEN2_3B, policy={"dtype": "float32"}, training={"kl": 0.001})
    assert found.weights == found.reference == found.gradients == found.buckets == 4 * P_3B
    assert found.optimizer == 8 * P_3B
    assert found.copies == 2 * P_3B
    assert found.trained == found.parameters == P_3B
    # 2.5 × 8 rows × 1500 tokens × 36 layers × 2 heads × 128 × keys and values of 2 bytes.
    assert found.cache == int(2.5 * 8 * 1500 * 36 * 256 * 4)
    # 3000 tokens × (36 layers' inputs of 4 bytes, and one layer's 38 H + 12 I + 4 keys).
    assert found.activations == 3000 * (36 * 2048 * 4 + 38 * 2048 + 12 * 11008 + 4 * 256)
    # A tile of 4096 × 32768 in bfloat16, the hidden states' gradient, the head's in float32.
    assert found.head == 2 * 4096 * 32768 + 3000 * 2048 * 4 + 151_936 * 2048 * 4
    held = 4 * P_3B + 4 * P_3B + 8 * P_3B
    assert found.training == held + 2 * P_3B + 4 * P_3B + found.activations + found.head
    assert found.sampling == held + 2 * P_3B + (found.cache or 0) + (found.sampling_work or 0)


def test_lora_on_bfloat16_by_hand() -> None:
    found = memory(QWEN3_06B, policy={"lora": {"rank": 16}}, training={"kl": 0.001})
    adapters = 28 * 16 * 22528
    assert found.trained == adapters
    assert found.weights == 2 * P_06B + 4 * adapters  # the base's own type, adapters in float32
    assert (found.optimizer, found.gradients) == (8 * adapters, 4 * adapters)
    assert found.reference == 0  # the base, its adapter off
    assert found.copies == 0
    assert found.cache == int(2.5 * 8 * 1500 * 28 * 1024 * 4)
    # Prompts: 8 rows × 1000 tokens × (20 H + 8 I of a layer, twice the cache's bytes), masks (L, L).
    per_token = 28 * 1024 * 4
    prompts = 8 * 1000 * (20 * 1024 + 8 * 3072 + 2 * per_token) + 8 * 1000**2 * 3
    turns = 8 * 100 * (20 * 1024 + 8 * 3072) + 2 * 2 * 8 * 1500 * 2048 + 8 * 151_936 * 22
    assert found.sampling_work == max(turns, prompts - (found.cache or 0))


def test_the_work_on_many_prompts_at_once_counts_where_it_is_more_than_the_turns() -> None:
    """Long prompts, nothing after them: their masks outgrow the cache that comes later."""
    limits = {
        "prompt_tokens": 30_000,
        "turn_tokens": 9,
        "trajectory_tokens": 10,
        "observation_tokens": 1,
    }
    found = memory(QWEN2_3B, policy={"lora": {}}, limits=limits)
    per_token = 36 * 256 * 4
    fed = 20 * 2048 + 8 * 11008
    prompts = 8 * 30_000 * (fed + 2 * per_token) + 8 * 30_000**2 * 3
    cache = int(2.5 * 8 * 30_010 * per_token)
    turns = 8 * fed + 2 * 2 * 8 * 30_010 * 2048 + 8 * 151_936 * 22
    assert prompts - cache > turns
    assert (found.cache, found.sampling_work) == (cache, prompts - cache)


def test_the_engines_arguments_are_heeded() -> None:
    plain = memory(QWEN2_3B, policy={"dtype": "float32"})
    full = {"engine_args": {"bf16": False}}
    exact = memory(QWEN2_3B, policy={"dtype": "float32"}, training=full)
    assert exact.copies == 0
    assert exact.cache == int(2.5 * 8 * 1500 * 36 * 256 * 8)
    kept = {"engine_args": {"gradient_checkpointing": False}}
    layer = 38 * 2048 + 12 * 11008 + 4 * 256
    assert memory(QWEN2_3B, training=kept).activations == 3000 * 36 * layer
    assert plain.activations < 3000 * 36 * layer
    vllm = memory(QWEN2_3B, training={"engine_args": {"use_vllm": True}})
    assert (vllm.cache, vllm.sampling_work, vllm.sampling) == (None, None, None)


def test_a_teachers_logits_and_copy_by_hand() -> None:
    def taught(teacher: str, **changes: Any) -> Memory:
        kl = {"kind": "kl", "teacher": teacher}
        return memory(QWEN3_06B, strategy={"kind": "p2o", "distillation": kl}, **changes)

    live = taught("live")
    assert live.head == 18 * 2 * 500 * 151_936  # 2 rows of 500 tokens
    assert live.reference == 0
    assert taught("base").reference == 2 * P_06B
    assert taught("ema").reference == 4 * P_06B  # an average in float32
    assert taught("base", training={"kl": 0.1}).reference == 2 * 2 * P_06B
    adapter = {"policy": {"path": "p", "lora": {"rank": 8}}}
    assert taught("base", **adapter).reference == 0
    assert taught("ema", **adapter).reference == 2 * P_06B


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_experts": 64}, "model_type qwen3 is a mixture of experts"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layers without attention"),
        ({"intermediate_size": None}, "cannot build a decoder of model_type qwen3"),
    ],
)
def test_other_architectures_are_not_guessed(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_shape({**QWEN3_06B, **changes})


def test_the_text_part_of_a_multimodal_policy() -> None:
    inner = {k: v for k, v in QWEN3_06B.items() if k != "tie_word_embeddings"}
    raw = {"model_type": "x", "tie_word_embeddings": True, "text_config": inner}
    assert read_shape(raw).parameters == P_06B


def cached(folder: Path, name: str, raw: dict[str, Any]) -> None:
    """Lays a config.json as huggingface_hub caches it."""
    repo = folder / f"models--{name.replace('/', '--')}"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("c0ffee")
    (repo / "snapshots" / "c0ffee").mkdir(parents=True)
    (repo / "snapshots" / "c0ffee" / "config.json").write_text(json.dumps(raw))


def shown(config: RunConfig) -> str:
    out = io.StringIO()
    show_memory(config, Console(file=out, width=120))
    return out.getvalue()


def test_a_name_is_looked_up_in_the_cache_and_in_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    named = config_with(policy={"path": "me/Qwen3-0.6B", "lora": {}})
    assert shown(named) == "memory: unknown, me/Qwen3-0.6B is not on this machine\n"
    cached(tmp_path, "me/Qwen3-0.6B", QWEN3_06B)
    text = shown(named)
    assert "Trained: 1.7% of 596,049,920 parameters" in text
    assert find_config("me/Qwen3-0.6B") == QWEN3_06B


def test_models_of_the_papers_are_known_without_being_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    # What their model cards and weights say of their size.
    for name, parameters in {
        "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
        "Qwen/Qwen2.5-3B": P_3B,
        "Qwen/Qwen2.5-7B": 7_615_616_512,
        "Qwen/Qwen3-0.6B": P_06B,
        "Qwen/Qwen3-4B": 4_022_468_096,
        "Qwen/Qwen3-8B": 8_190_735_360,
    }.items():
        raw = find_config(name)
        assert raw is not None
        assert read_shape(raw).parameters == parameters
    assert find_config("Qwen/Qwen2.5-3B-Instruct") == QWEN2_3B
    assert find_config("Qwen/Qwen3-0.6B-Base") == QWEN3_06B
    # One that is here has the word.
    cached(tmp_path, "Qwen/Qwen2.5-3B", QWEN3_06B)
    assert find_config("Qwen/Qwen2.5-3B") == QWEN3_06B


@pytest.mark.parametrize("path", ["./nowhere", "no such/name", "bundled:nothing"])
def test_what_is_nowhere_is_unknown(path: str) -> None:
    assert shown(config_with(policy={"path": path})) == (
        f"memory: unknown, {path} is not on this machine\n"
    )


def at(folder: Path, raw: dict[str, Any], **changes: Any) -> RunConfig:
    (folder / "config.json").write_text(json.dumps(raw))
    policy = {"path": str(folder), **changes.pop("policy", {})}
    return config_with(policy=policy, **changes)


def test_the_table(tmp_path: Path) -> None:
    text = shown(at(tmp_path, QWEN2_3B, policy={"dtype": "float32"}, training={"kl": 0.001}))
    rows = {line.split("│")[0].strip(): line for line in text.splitlines() if "│" in line}
    assert rows["weights"].count("11.5 GiB") == 2
    assert rows["reference policy"].count("11.5 GiB") == 2
    assert rows["optimizer (AdamW)"].count("23.0 GiB") == 2
    # 2.5 × 8 × 1500 × 36 × 256 × 4 bytes.
    assert "1.0 GiB" in rows["KV cache, 8 rows of 1,500 tokens"]
    assert rows["gradients"].count("11.5 GiB") == 1
    assert "each holds 11.5 GiB more (DDP)" in text
    assert "notice" not in text


@pytest.mark.parametrize(("test_questions", "rows"), [(3, 24), (40, 40), (500, 64)])
def test_rows_at_once_are_a_steps_or_an_evaluations(
    tmp_path: Path, test_questions: int, rows: int
) -> None:
    config = at(
        tmp_path,
        QWEN2_3B,
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


def test_what_has_no_bytes_has_no_row_and_vllm_no_sum(tmp_path: Path) -> None:
    text = shown(at(tmp_path, QWEN3_06B, training={"engine_args": {"use_vllm": True}}))
    assert "reference" not in text
    assert "KV cache" not in text
    assert "vLLM samples" in text


def test_an_unknown_architecture_is_said(tmp_path: Path) -> None:
    text = shown(at(tmp_path, {**QWEN3_06B, "num_experts": 8}))
    assert text == "memory: unknown, model_type qwen3 is a mixture of experts\n"


def test_steps_that_bfloat16_loses_are_told(tmp_path: Path) -> None:
    notice = rounding_notice("bfloat16", 5e-7)
    assert notice is not None
    assert "for weights above 0.00026" in notice
    assert rounding_notice("float16", 5e-7) is not None
    assert rounding_notice("float32", 5e-7) is None
    assert rounding_notice("bfloat16", 1e-4) is None
    small = {"learning_rate": 5e-7}
    text = shown(at(tmp_path, QWEN2_3B, training=small))
    assert "notice: weights are trained in bfloat16" in text
    assert "notice" not in shown(at(tmp_path, QWEN2_3B, training=small, policy={"lora": {}}))
    assert "notice" not in shown(at(tmp_path, QWEN2_3B, training={"learning_rate": 1e-3}))


def test_memory_without_a_gpu_by_hand() -> None:
    config = config_with(policy={"dtype": "float32"}, training={"kl": 0.001})
    found = memory_of(config, read_shape(QWEN3_06B), on_cpu=True)
    # No autocast, and every layer's activations in float32: twice those of autocast.
    assert found.copies == 0
    assert found.activations == 3000 * 28 * 2 * (38 * 1024 + 12 * 3072 + 4 * 1024)
    # Weights twice (the file, too), reference, gradients, two moments; the tile of log-probabilities
    # three times in float32, and what sampling takes besides.
    weights = 6 * 4 * P_06B
    tile, rest = 4096 * 32768 * 4, 3000 * 1024 * 4 + 151_936 * 1024 * 4
    assert found.cache is not None
    assert found.sampling_work is not None
    sampling = found.cache + found.sampling_work
    libraries = 3 * 2**29
    assert cpu_memory(config, read_shape(QWEN3_06B)) == (
        libraries + weights + found.activations + 3 * tile + rest + sampling
    )


@pytest.mark.parametrize("gpu", [False, True])
def test_memory_without_a_gpu_is_shown_where_there_is_none(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    out = io.StringIO()
    show_memory(config_with(), Console(file=out, width=200))
    assert ("Without a GPU, as here: at most" in out.getvalue()) == (not gpu)
