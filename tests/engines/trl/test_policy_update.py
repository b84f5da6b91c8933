"""Leaving out what cannot change the gradient does not change the gradient."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Model,
    Qwen3Config,
    Qwen3ForCausalLM,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from cotune.engines.trl.policy_update import PolicyUpdate, completion_logits, score_completions
from cotune.methods.static import StaticStrategy
from cotune.policy.policy_files import policy_path
from cotune.policy.sampling import can_share

# Three groups of two: one decides, two are all right or all wrong; lengths differ.
REWARDS = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]
COMPLETIONS = [[5, 6, 7], [8, 9], [4] * 30, [5] * 25, [6] * 20, [7, 8]]
PROMPTS = [[11, 12], [11, 12], [13] * 9, [13] * 9, [14], [14]]


class Gradients(TrainerCallback):
    """Keeps the gradients of the first optimizer step."""

    def __init__(self) -> None:
        self.gradients: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
        if not self.gradients:
            self.gradients = {
                name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
            }


class NoRun(SimpleNamespace):
    """What `PolicyUpdate` reads of a run that brings the rollouts it is given, and distils nothing."""

    coordinator = SimpleNamespace(strategy=StaticStrategy(""))
    parts, batch = (
        SimpleNamespace(settings=SimpleNamespace(frozen=False)),
        SimpleNamespace(needs_token_weights=False),
    )
    callbacks = ()

    def bind(self, trainer: object) -> None: ...

    def flat_rows(self, count: int) -> list[int]:
        return []


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(policy_path("bundled:geo"))


def gradients(
    kind: type[GRPOTrainer],
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    rewards: Sequence[float] = REWARDS,
    **changes: Any,
) -> dict[str, torch.Tensor]:
    """The first update's gradients on the same six rollouts, shared among the ranks."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=0,
        eos_token_id=2,
    )
    arguments: dict[str, Any] = {
        "output_dir": str(folder), "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
        "max_steps": 1, "per_device_train_batch_size": 3, "gradient_accumulation_steps": 2,
        "num_generations": 2, "beta": 0.0, "loss_type": "grpo", "max_grad_norm": 1e9,
        "shuffle_dataset": False, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
        "seed": 3, **changes,
    }  # fmt: skip

    def rollout(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        first = trainer.accelerator.process_index * len(prompts)
        rows = slice(first, first + len(prompts))
        return {
            "prompt_ids": PROMPTS[rows],
            "completion_ids": COMPLETIONS[rows],
            "logprobs": None,
            "env_mask": [[1] * len(ids) for ids in COMPLETIONS[rows]],
            "scores": list(rewards[rows]),
        }

    def reward(scores: list[float], **_: Any) -> list[float]:
        return scores

    callback = Gradients()
    model = Qwen2ForCausalLM(config)
    # TRL loads the reference model of a KL term from there. (Of several ranks the first one saves.)
    model.save_pretrained(folder / "model")
    model.config._name_or_path = str(folder / "model")
    shared: dict[str, Any] = {
        "args": GRPOConfig(**arguments),
        "reward_funcs": reward,
        "rollout_func": rollout,
    }
    data = Dataset.from_dict({"prompt": ["a", "b", "c"]})
    if issubclass(kind, PolicyUpdate):
        run: Any = NoRun(dataset=data, tokenizer=tokenizer, state_folder=folder, **shared)
        kind(model, run, [callback]).train()
    else:
        kind(
            model, train_dataset=data, processing_class=tokenizer, callbacks=[callback], **shared
        ).train()
    return callback.gradients


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "cispo", "bnpo"])
def test_gradient_is_that_of_grpo_trainer(
    loss_type: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    plain = gradients(GRPOTrainer, tokenizer, tmp_path / "plain", loss_type=loss_type)
    joint = gradients(PolicyUpdate, tokenizer, tmp_path / "joint", loss_type=loss_type)
    assert plain.keys() == joint.keys()
    assert max(float(g.abs().max()) for g in plain.values()) > 1e-4
    for name, gradient in plain.items():
        assert torch.allclose(gradient, joint[name], atol=1e-6, rtol=1e-4), name


def test_kl_keeps_rows_without_advantage(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    original = GRPOTrainer.compute_loss

    def spy(self: Any, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        rows.append(len(inputs["advantages"]))
        return original(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(GRPOTrainer, "compute_loss", spy)
    gradients(PolicyUpdate, tokenizer, tmp_path / "kl", beta=0.1)
    assert rows == [3, 3]
    rows.clear()
    gradients(PolicyUpdate, tokenizer, tmp_path / "free")
    # Two rows of six decide; a micro-batch without any keeps one, for the other ranks' sake.
    assert sum(rows) in (2, 3)
    assert all(count >= 1 for count in rows)


def test_a_prompt_that_rollouts_share_is_fed_once(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, int]] = []
    original = Qwen2Model.forward

    def spy(self: Any, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        shapes.append((input_ids.shape[0], input_ids.shape[1]))
        return original(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(Qwen2Model, "forward", spy)
    rewards = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    # By this seed's shuffle each half of the batch has all three prompts before its rows are sorted.
    gradients(PolicyUpdate, tokenizer, tmp_path / "shared", rewards, seed=4)
    # Two prompts of at most nine tokens, whose last goes with the completions.
    assert [count for count, _ in shapes] == [2, 3] * 2
    assert max(width for _, width in shapes[::2]) == 8
    assert max(width for _, width in shapes[1::2]) == 30
    shapes.clear()
    gradients(PolicyUpdate, tokenizer, tmp_path / "alone", rewards, gradient_checkpointing=True)
    assert [count for count, _ in shapes] == [3, 3]
    assert max(width for _, width in shapes) == 39


# ---- a prompt that is fed once scores its completions, and trains the policy, as one fed with each


SHAPE: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
# Two prompts of two lengths, of which one is shared by three rows, and completions of several lengths.
SHARED_PROMPTS = [[0, 0, 7, 8], [3, 4, 5, 6], [0, 0, 7, 8], [0, 0, 7, 8]]
SHARED_COMPLETIONS = [[9, 10, 11], [12, 0, 0], [13, 14, 0], [9, 10, 15]]
IDS = torch.tensor([[*p, *c] for p, c in zip(SHARED_PROMPTS, SHARED_COMPLETIONS, strict=True)])
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


def row_gradients(model: PreTrainedModel, scores: torch.Tensor) -> list[torch.Tensor]:
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
    output = model(input_ids=IDS, attention_mask=MASK, labels=labels, fused_lm_head=True)
    expected = row_gradients(model, output.log_probs[:, -WIDTH:])

    scores, entropies = score_completions(model, IDS, MASK, WIDTH)
    assert torch.allclose(scores, output.log_probs[:, -WIDTH:], atol=1e-5)
    assert torch.allclose(entropies, output.entropy[:, -WIDTH:], atol=1e-5)
    actual = row_gradients(model, scores)
    assert max(float(g.abs().max()) for g in expected) > 1e-3
    for gradient, reference in zip(actual, expected, strict=True):
        assert torch.allclose(gradient, reference, atol=1e-6, rtol=1e-4)


def test_teacher_reads_the_same_logits_from_shared_prompts() -> None:
    model = policy("llama").eval()
    batch = {
        "prompt_ids": IDS[:, :-WIDTH],
        "prompt_mask": MASK[:, :-WIDTH],
        "completion_ids": IDS[:, -WIDTH:],
        "completion_mask": MASK[:, -WIDTH:],
    }
    with torch.no_grad():
        shared, separate = (completion_logits(model, batch, 0.7, way) for way in (True, False))
    assert shared.shape == (4, WIDTH, 50)
    real = MASK[:, -WIDTH:].bool()
    assert torch.allclose(shared[real], separate[real], atol=1e-5)


def test_what_cannot_share_and_a_prompt_of_one_token() -> None:
    windowed = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=4))
    assert not can_share(windowed)
    model = policy("llama").train()
    model.gradient_checkpointing_enable()
    assert not can_share(model)
    assert can_share(model.eval())
    # A prompt of one token can.
    model = policy("llama")
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    ids = torch.tensor([[7, 9, 10], [7, 11, 12]])
    scores, _ = score_completions(model, ids, torch.ones_like(ids), 2)
    expected = model(ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    assert torch.allclose(scores, expected, atol=1e-5)
