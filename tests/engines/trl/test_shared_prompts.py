"""A prompt fed once scores its completions, and trains the policy, as one fed with each of them."""

from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from trl.trainer.utils import add_fused_lm_head

from cotune.engines.trl.policy_update import completion_logits, score_completions
from cotune.policy.sampling import can_share

SHAPE: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
# Two prompts of two lengths, of which one is shared by three rows, and completions of several lengths.
PROMPTS = [[0, 0, 7, 8], [3, 4, 5, 6], [0, 0, 7, 8], [0, 0, 7, 8]]
COMPLETIONS = [[9, 10, 11], [12, 0, 0], [13, 14, 0], [9, 10, 15]]
IDS = torch.tensor([[*p, *c] for p, c in zip(PROMPTS, COMPLETIONS, strict=True)])
MASK = (IDS != 0).long()
WIDTH = 3


def policy(kind: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**SHAPE))
    if kind == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**SHAPE))
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=50, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
    )


def gradients(model: PreTrainedModel, scores: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    weights = torch.tensor([[1.0], [-0.5], [2.0], [-1.0]])  # advantages
    (scores * weights * MASK[:, -WIDTH:]).sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_scores_and_gradients_are_those_of_whole_rows(kind: str) -> None:
    model = policy(kind)
    model.train()
    assert can_share(model)
    add_fused_lm_head(model, temperature=0.7, outputs=("log_probs", "entropy"))
    labels = IDS.masked_fill(MASK == 0, -100)
    labels[:, :-WIDTH] = -100
    whole = model(input_ids=IDS, attention_mask=MASK, labels=labels, fused_lm_head=True)
    expected = gradients(model, whole.log_probs[:, -WIDTH:])

    scores, entropies = score_completions(model, IDS, MASK, WIDTH)
    assert torch.allclose(scores, whole.log_probs[:, -WIDTH:], atol=1e-5)
    assert torch.allclose(entropies, whole.entropy[:, -WIDTH:], atol=1e-5)
    found = gradients(model, scores)
    assert max(float(g.abs().max()) for g in expected) > 1e-3
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6, rtol=1e-4)


def test_teacher_reads_the_same_logits_from_shared_prompts() -> None:
    model = policy("llama").eval()
    batch = {
        "prompt_ids": IDS[:, :-WIDTH],
        "prompt_mask": MASK[:, :-WIDTH],
        "completion_ids": IDS[:, -WIDTH:],
        "completion_mask": MASK[:, -WIDTH:],
    }
    with torch.no_grad():
        shared, whole = (completion_logits(model, batch, 0.7, way) for way in (True, False))
    assert shared.shape == (4, WIDTH, 50)
    real = MASK[:, -WIDTH:].bool()
    assert torch.allclose(shared[real], whole[real], atol=1e-5)


def test_a_prompt_of_one_token() -> None:
    model = policy("llama")
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    ids = torch.tensor([[7, 9, 10], [7, 11, 12]])
    scores, _ = score_completions(model, ids, torch.ones_like(ids), 2)
    expected = model(ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    assert torch.allclose(scores, expected, atol=1e-5)


def test_what_cannot_share() -> None:
    windowed = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=4))
    assert not can_share(windowed)
    model = policy("llama").train()
    model.gradient_checkpointing_enable()
    assert not can_share(model)
    assert can_share(model.eval())
