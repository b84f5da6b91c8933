"""The estimates of `cotune.engines.estimate` beside what is measured here: tensors, by their storages."""

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

KINDS: dict[str, tuple[Any, Any]] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
TOKENS = 256


def policy(kind: str, dtype: torch.dtype = torch.float32, **shape: int) -> Any:
    values = {
        "vocab_size": 40, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True,
        **({"head_dim": 16} if kind == "qwen3" else {}),
    }  # fmt: skip
    config, model = KINDS[kind]
    torch.manual_seed(0)
    return model(config(**(values | shape))).to(dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lora", [False, True])
def test_a_layers_activations(kind: str, dtype: torch.dtype, lora: bool) -> None:
    """What autograd saves of a layer is under the estimate, and not by far."""
    model = policy(kind, dtype, hidden_size=128, num_attention_heads=8, intermediate_size=512)
    base: Any = model
    if lora:
        given = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
        base = get_peft_model(model, given).get_base_model()
    weights = {p.untyped_storage().data_ptr() for p in base.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def kept(tensor: torch.Tensor) -> torch.Tensor:
        at = tensor.untyped_storage().data_ptr()
        if at not in weights and TOKENS in tensor.shape:  # not a weight, nor its copy
            saved[at] = tensor
        return tensor

    hidden = torch.randn(1, TOKENS, 128, dtype=dtype, requires_grad=True)
    position = torch.arange(TOKENS)[None]
    with (
        torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        turned = base.model.rotary_emb(hidden, position)
        base.model.layers[0](hidden, position_embeddings=turned, attention_mask=None)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in saved.values()) / TOKENS
    estimated = 40 * 128 + 12 * 512
    assert 0.4 * estimated < measured < estimated
