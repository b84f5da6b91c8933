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
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Model,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

from cotune.engines.trl.policy_update import PolicyUpdate
from cotune.methods.static import StaticStrategy
from cotune.policy.policy_files import policy_path

# Three groups of two: one decides, two are all right or all wrong; lengths differ.
REWARDS = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]
COMPLETIONS = [[5, 6, 7], [8, 9], [4] * 30, [5] * 25, [6] * 20, [7, 8]]
PROMPTS = [[11, 12], [11, 12], [13] * 9, [13] * 9, [14], [14]]


class Gradients(TrainerCallback):
    """Keeps the gradients of the first optimizer step."""

    def __init__(self) -> None:
        self.kept: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
        if not self.kept:
            self.kept = {
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
        mine = slice(first, first + len(prompts))
        return {
            "prompt_ids": PROMPTS[mine],
            "completion_ids": COMPLETIONS[mine],
            "logprobs": None,
            "env_mask": [[1] * len(ids) for ids in COMPLETIONS[mine]],
            "given": list(rewards[mine]),
        }

    def reward(given: list[float], **_: Any) -> list[float]:
        return given

    seen = Gradients()
    model = Qwen2ForCausalLM(config)
    # TRL loads the reference model of a KL term from there. (Of several ranks the first one saves.)
    model.save_pretrained(folder / "model")
    model.config._name_or_path = str(folder / "model")
    given: dict[str, Any] = {
        "args": GRPOConfig(**arguments),
        "reward_funcs": reward,
        "rollout_func": rollout,
    }
    data = Dataset.from_dict({"prompt": ["a", "b", "c"]})
    if issubclass(kind, PolicyUpdate):
        run: Any = NoRun(dataset=data, tokenizer=tokenizer, state_folder=folder, **given)
        kind(model, run, [seen]).train()
    else:
        kind(
            model, train_dataset=data, processing_class=tokenizer, callbacks=[seen], **given
        ).train()
    return seen.kept


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
    fed: list[tuple[int, int]] = []
    original = Qwen2Model.forward

    def spy(self: Any, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        fed.append((input_ids.shape[0], input_ids.shape[1]))
        return original(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(Qwen2Model, "forward", spy)
    rewards = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    batch = {"per_device_train_batch_size": 6, "gradient_accumulation_steps": 1}
    gradients(PolicyUpdate, tokenizer, tmp_path / "shared", rewards, **batch)
    # Three prompts of at most nine tokens, of which the last goes with the completion of up to thirty.
    assert fed == [(3, 8), (6, 30)]
    fed.clear()
    gradients(
        PolicyUpdate, tokenizer, tmp_path / "alone", rewards, gradient_checkpointing=True, **batch
    )
    assert set(fed) == {(6, 39)}
