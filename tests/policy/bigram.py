"""A policy whose turns are known: it draws one of a few texts, and closes its turn.

What comes next depends on the last token alone, so nothing has to be trained, and everything can
be: the chances are weights of the model.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from tests.policy.tiny import byte_tokenizer, models_template

CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
TOOL_TAGS = ("<tool_call>", "</tool_call>")
QWEN = models_template("qwen2_5")
# What the template says of tools in general: a token each, which makes prompts short.
_PHRASES = (
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "You may call one or more functions to assist with the user query.",
    "You are provided with function signatures within <tools></tools> XML tags:",
    "For each function call, return a json object with function name and arguments within",
    '{"type": "function", "function": {"name": ',
    ', "parameters": {"type": "object", "properties": {',
)
_SURE = 20.0  # the logit of what comes next; all else has 0


def bigram_policy(
    turns: Mapping[str, float], template: str
) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    """Model and tokenizer.

    Args:
        turns: what the policy writes in a turn, and how likely; each is a token of its own.
        template: a chat template whose generation prompt ends with a line break.
    """
    tokenizer = byte_tokenizer(template, CHATML, "<|im_end|>", (*TOOL_TAGS, *_PHRASES, *turns))
    size = -(-len(tokenizer) // 8) * 8
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=size,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            tie_word_embeddings=False,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
    newline = tokenizer.encode("\n", add_special_tokens=False)[0]
    eos = tokenizer.eos_token_id
    assert isinstance(eos, int)
    with torch.no_grad():
        # A token is its own direction, and neither attention nor MLP adds anything to it.
        model.model.embed_tokens.weight.copy_(torch.eye(len(tokenizer), size))
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        head = torch.zeros(len(tokenizer), size)
        head[eos] = _SURE
        head[:, newline] = 0
        for text, chance in turns.items():
            head[tokenizer.convert_tokens_to_ids(text), newline] = _SURE + math.log(chance)
        model.lm_head.weight.copy_(head / math.sqrt(size))
    return model.eval(), tokenizer


def save(folder: Path, turns: Mapping[str, float], template: str = QWEN) -> Path:
    """A Hugging Face folder of a `bigram_policy`."""
    model, tokenizer = bigram_policy(turns, template)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
