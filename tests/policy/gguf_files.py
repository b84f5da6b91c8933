"""Small GGUF files: a llama of some thousand parameters with a tokenizer of bytes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOKENS = (*CONTROL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_llama() -> LlamaForCausalLM:
    """Return random weights, large enough that contexts matter, with a tied head."""
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def write_gguf(
    path: Path,
    model: LlamaForCausalLM | None = None,
    *,
    quantized: bool = False,
    architecture: str = "llama",
    template: str | None = TEMPLATE,
    without: str = "",
    **changed: Any,
) -> Path:
    """Write a model as llama.cpp's converter does; return the path.

    Args:
        quantized: matrices in Q8_0 instead of float32.
        template: the chat template; None for none.
        without: a tensor to leave out.
        changed: fields of the tokenizer: eos_token_id.
    """
    model = model or tiny_llama()
    config, writer = model.config, GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(len(TOKENS))
    writer.add_license("apache-2.0")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(list(TOKENS))
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(TOKENS) - len(CONTROL)))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(changed.get("eos_token_id", 2))
    writer.add_pad_token_id(0)
    if template is not None:
        writer.add_chat_template(template)
    for name, tensor in _named(model).items():
        if name == without:
            continue
        values = tensor.detach().float().numpy()
        if quantized and values.ndim == 2:
            blocks = quantize(values, GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, blocks, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _named(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """Return the weights by GGUF's names; rows of queries and keys are reordered as GGUF has them."""
    state, config = model.state_dict(), model.config
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    found = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
    }
    for layer in range(config.num_hidden_layers):
        for theirs, ours in _LAYER.items():
            tensor = state[f"model.layers.{layer}.{theirs}.weight"]
            if ours in heads:
                rows, width = tensor.shape
                halves = tensor.reshape(heads[ours], 2, rows // heads[ours] // 2, width)
                tensor = halves.swapaxes(1, 2).reshape(rows, width)
            found[f"blk.{layer}.{ours}.weight"] = tensor
    return found
