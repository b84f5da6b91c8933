"""Memory of a run, worked by hand for published shapes, and what `cotune plan` prints of it."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import AutoConfig

from cotune.cli.plan import plan
from cotune.config.run_file import RunConfig, parse_config
from cotune.engines.engine import engine_of
from cotune.engines.estimate import Layout, Memory, Shape, memory_of, read_shape, shape_of
from cotune.policy.policy_files import LoraOptions, PolicyConfig, policy_path
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


def shape(raw: dict[str, Any], lora: LoraOptions | None = None) -> Shape:
    return read_shape(AutoConfig.for_model(**raw), lora)


def memory(raw: dict[str, Any], layout: Layout = ALONE, **changes: Any) -> Memory:
    config = config_with(**changes)
    return memory_of(config, shape(raw, config.policy.lora), layout)


def part(estimate: Memory, label: str) -> tuple[int, int]:
    """The bytes of a part while sampling and while training."""
    (row,) = (row for name, row in estimate.rows.items() if name.startswith(label))
    return row


# ---- shapes


def test_parameters_by_hand() -> None:
    # Qwen2: q 2048² + 2048, k and v 2 × (2048 × 256 + 256), o 2048², 3 × 2048 × 11008, 2 × 2048.
    layer = 4_196_352 + 1_049_088 + 4_194_304 + 67_633_152 + 4_096
    assert 151_936 * 2048 + 36 * layer + 2048 == P_3B
    assert shape(QWEN2_3B).parameters == P_3B
    # Qwen3: q and o 1024 × 2048 each, k and v 1024², 3 × 1024 × 3072, 2 × 1024 + 2 × 128.
    layer = 2 * 2_097_152 + 2 * 1_048_576 + 9_437_184 + 2_304
    assert 151_936 * 1024 + 28 * layer + 1024 == P_06B
    assert shape(QWEN3_06B).parameters == P_06B
    untied = shape({**QWEN3_06B, "tie_word_embeddings": False})
    assert untied.parameters == P_06B + 151_936 * 1024
    # Adapters.
    # r × (in + out): q and o 3072 each, k and v 2048 each, three of the MLP 4096 each.
    assert shape(QWEN3_06B, LoraOptions(rank=16)).adapters == 28 * 16 * (6144 + 4096 + 12288)
    some = LoraOptions(rank=1, target_modules=("q_proj", "mlp.down_proj"))
    assert shape(QWEN3_06B, some).adapters == 28 * (3072 + 4096)


def test_parameters_of_a_bundled_policy_are_those_of_its_weights() -> None:
    file = Path(policy_path("bundled:ladder")) / "model.safetensors"
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        header = json.loads(opened.read(length))
    counts = [
        int.__mul__(*entry["shape"]) if len(entry["shape"]) == 2 else entry["shape"][0]
        for key, entry in header.items()
        if key != "__metadata__"
    ]
    assert shape_of(PolicyConfig(path="bundled:ladder")).parameters == sum(counts)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_experts": 64}, "model_type qwen3 is a mixture of experts"),
        ({"layer_types": ["linear_attention", "full_attention"] * 14}, "layers without attention"),
        ({"vocab_size": -1}, "cannot build a decoder of model_type qwen3"),
    ],
)
def test_other_architectures_are_not_guessed(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        shape({**QWEN3_06B, **changes})


def test_a_name_is_looked_up_in_the_hubs_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cache(monkeypatch, tmp_path, "Qwen/Qwen3-4B")
    assert shape_of(PolicyConfig(path="Qwen/Qwen3-4B")).parameters == 4_022_468_096
    for path in ("Qwen/Qwen3-0.6B", "./nowhere", "no such/name", "bundled:nothing"):
        with pytest.raises(ValueError, match=r"policy\.path"):
            shape_of(PolicyConfig(path=path))
    # Of a multimodal policy it is the text's part.
    raw = {"model_type": "gemma3", "text_config": {"vocab_size": 100, "num_hidden_layers": 2}}
    assert shape(raw).layers == 2


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
    # 3000 tokens × (36 layers' inputs of 4 bytes, and one layer's 40 H + 12 I).
    activations = 3000 * (36 * 2048 * 4 + 40 * 2048 + 12 * 11008)
    assert found.rows["activations, 2 rows of 1,500 tokens"] == (0, activations)
    # A tile of 4096 × 32768, and the head's gradient, in float32.
    head = 4 * 4096 * 32768 + 151_936 * 2048 * 4
    assert part(found, "log-probabilities") == (0, head)
    held = 18 * P_3B
    assert found.training == held + 4 * P_3B + activations + head
    # A mask of each prompt as booleans and as a bias, and 22 bytes a logit while a token is drawn.
    draws = 8 * (1000**2 * 3 + 151_936 * 22)
    # Prompts of 1000 tokens: a layer's 20 H + 8 I, and two copies of keys and values, before the cache has grown.
    prompts = 8 * 1000 * (20 * 2048 + 8 * 11008 + 2 * 36 * 256 * 4) - cache
    assert part(found, "prompts") == (prompts + draws, 0)
    assert found.sampling == held + cache + prompts + draws


def test_lora_on_bfloat16_and_the_engines_arguments_by_hand() -> None:
    found = memory(QWEN3_06B, policy={"lora": {"rank": 16}}, training={"kl": 0.001})
    adapters = 28 * 16 * 22528
    assert found.trained == adapters
    assert part(found, "weights")[0] == 2 * P_06B + 4 * adapters  # adapters in float32
    assert part(found, "optimizer")[1] == 8 * adapters
    assert part(found, "gradients")[1] == 4 * adapters
    assert part(found, "reference") == (0, 0)  # the base, its adapter off
    assert part(found, "copies") == (0, 0)
    # The engine's arguments are heeded.
    plain = memory(QWEN2_3B, policy={"dtype": "float32"})
    full = {"engine_args": {"bf16": False}}
    exact = memory(QWEN2_3B, policy={"dtype": "float32"}, training=full)
    assert part(exact, "copies") == (0, 0)
    assert part(exact, "KV cache")[0] == int(2.5 * 8 * 1500 * 36 * 256 * 8)
    kept = {"engine_args": {"gradient_checkpointing": False}}
    layer = 40 * 2048 + 12 * 11008
    whole = part(memory(QWEN2_3B, training=kept), "activations")[1]
    assert whole == 3000 * 36 * layer > part(plain, "activations")[1]
    name = "actor_rollout_ref.model.enable_gradient_checkpointing"
    kept_by_verl = memory(QWEN2_3B, training={"engine_args": {name: False}})
    assert part(kept_by_verl, "activations")[1] == whole
    verl = memory(QWEN2_3B, Layout(whole_logits=True))
    assert part(verl, "log-probabilities")[1] == 3000 * 151_936 * 8
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
    return memory_of(config, shape(QWEN2_3B, config.policy.lora), layout)


def test_weights_that_are_spread_by_hand() -> None:
    # FSDP.
    found = spread({"fsdp": True})
    assert part(found, "weights") == part(found, "reference") == (P_3B * 4 // 8, P_3B * 4 // 8)
    assert part(found, "gradients")[1] == P_3B * 4 // 8
    assert part(found, "optimizer")[1] == P_3B * 8 // 8
    assert part(found, "copies") == (P_3B * 2, P_3B * 2)  # gathered
    half = {"path": "bundled:ladder", "dtype": "bfloat16"}
    assert spread({"fsdp": True}, policy=half) == found
    # ZeRO.
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
    # Processes that share nothing exchange gradients.
    alone, eight = spread({}, 1), spread({})
    assert part(eight, "gradients")[1] == 2 * part(alone, "gradients")[1]
    assert eight.sampling == alone.sampling


# ---- what the command prints


def printed(folder: Path, raw: dict[str, Any], questions: str = "9,3,6", **changes: Any) -> str:
    """What `plan` prints of a policy in a folder."""
    (folder / "config.json").write_text(json.dumps(raw))
    policy = {"path": str(folder), **changes.pop("policy", {})}
    config = config_with(policy=policy, **changes)
    file = write(folder / "run.yaml", config.model_dump(mode="json"))
    out = io.StringIO()
    plan(file, Console(file=out, width=200), questions=questions)
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
    assert "Trained: 3,085,938,688 parameters on 1 GPU. " in text
    assert "notice" not in text


def test_what_has_no_bytes_has_no_row(tmp_path: Path) -> None:
    # vLLM has no sum.
    text = printed(tmp_path, QWEN3_06B, training={"engine_args": {"use_vllm": True}})
    assert "reference" not in text
    assert "KV cache" not in text
    assert "vLLM takes 30% of each GPU while it samples" in text
    # An unknown architecture is said.
    text = printed(tmp_path, {**QWEN3_06B, "num_experts": 8})
    assert "memory: unknown, model_type qwen3 is a mixture of experts\n" in text


@pytest.mark.parametrize(("test_questions", "rows"), [(3, 24), (40, 40), (500, 64)])
def test_rows_at_once_are_a_steps_or_an_evaluations(
    tmp_path: Path, test_questions: int, rows: int
) -> None:
    text = printed(
        tmp_path,
        QWEN2_3B,
        f"9,3,{test_questions}",
        strategy={"kind": "static"},
        training={"steps": 100, "questions_per_step": 6, "group_size": 4, "rows_per_call": 64},
        evaluation={"every": 0, "before": False},
    )
    assert f"KV cache, {rows} rows of" in text


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
