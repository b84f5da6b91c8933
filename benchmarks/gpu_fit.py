"""Fit a policy of `geo` from scratch, larger than the bundled one, within a time limit.

The recipe is that of the bundled policy (`recipes.geo.pretrain`) in another shape, on one device; its
learning rates decay with the remaining time instead of the steps.
"""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from generation import GUIDED
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cotune.policy.local_policy import local_coordinator
from cotune.policy.policy_files import policy_path
from cotune.rollout.coordinator import RolloutSettings
from cotune.worlds.geo import GeoEnvironment, GeoOptions

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `recipes`
from recipes.fitting import micro_batches, new_model, new_optimizers, token_losses
from recipes.geo.card import LIMITS
from recipes.geo.pretrain import Phase, Recipe, rows

_WARM_UP = 0.05  # share of the time
_FLOOR = 0.02  # of the learning rates


@dataclass(frozen=True)
class Fitted:
    """The figures of a fitted policy.

    Attributes:
        parameters: of the policy.
        steps: updates made.
        tokens_rate: tokens a second, prompts and observations included.
        first_loss, last_loss: means over a twentieth of the steps, of the policy's own tokens.
        questions: test questions, answered greedily.
        plain, guided: exact match under the initial instruction, and under one that says to look up
            one entity at a time.
    """

    parameters: int
    steps: int
    tokens_rate: float
    first_loss: float
    last_loss: float
    questions: int
    plain: float
    guided: float


class _Demonstrations(IterableDataset[Any]):
    """Batches of the recipe's first phase, each a list of micro-batches; different for every worker."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> None:
        self._tokenizer, self._recipe = tokenizer, recipe

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        rank, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        shown = rows(self._tokenizer, self._recipe, 0, rank, count)
        return micro_batches(shown, self._tokenizer, self._recipe, 1)


def recipe(hidden_size: int, layers: int, batch: int) -> Recipe:
    """Return the bundled policy's recipe with another shape; Muon's rate is that of its matrices' own scale."""
    heads = max(2, hidden_size // 64)
    return Recipe(
        hidden_size=hidden_size,
        layers=layers,
        heads=heads,
        kv_heads=heads // 2,
        batch=batch,
        micro_batches=1,
        phases=(Phase(0, 1.0, (0.015, 0.04)),),
    )


def fit(out: Path, shape: Recipe, seconds: float, device: str) -> tuple[int, list[float], float]:
    """Train for a number of seconds and write a Hugging Face folder.

    Returns:
        parameters, the loss of each step, tokens a second.
    """
    tokenizer = AutoTokenizer.from_pretrained(policy_path("bundled:geo"))
    tokenizer.save_pretrained(out)
    model: Any = new_model(tokenizer, shape)
    model.to(device)
    optimizers, bases = new_optimizers(model, shape)
    workers = max(0, (os.cpu_count() or 1) - 2) if device == "cuda" else 0
    batches = iter(DataLoader(_Demonstrations(tokenizer, shape), None, num_workers=workers))
    losses: list[torch.Tensor] = []
    tokens, batch, begun = 0, next(batches), time.perf_counter()
    while (gone := (time.perf_counter() - begun) / seconds) < 1 or not losses:
        scale = min(1.0, (gone + 1e-3) / _WARM_UP) * max(_FLOOR, 1 - gone)
        for optimizer, base in zip(optimizers, bases, strict=True):
            optimizer.param_groups[0]["lr"] = base * scale
        ((ids, labels),) = batch
        real = int((ids != tokenizer.pad_token_id).sum())  # before the copy to the GPU
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = token_losses(model, ids.to(device), labels.to(device)).float().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
        tokens += real
        batch = next(batches)
    numbers = torch.stack(losses).tolist()  # waits for the GPU
    took = time.perf_counter() - begun
    model.save_pretrained(out)
    return model.num_parameters(), numbers, tokens / took


def learn(out: Path, shape: Recipe, seconds: float, device: str, questions: int) -> Fitted:
    """Fit a policy and score it on the test split."""
    parameters, losses, rate = fit(out, shape, seconds, device)
    environment = GeoEnvironment(GeoOptions(train=1, validation=3, test=questions))
    told = environment.initial_instruction
    scores: list[float] = []
    for instruction in (told, GUIDED + told):
        coordinator = local_coordinator(out, environment, instruction, RolloutSettings(LIMITS))
        done = coordinator.evaluate(environment.tasks("test"))
        scores.append(sum(t.reward for t in done) / len(done))
    part = max(1, len(losses) // 20)
    return Fitted(
        parameters=parameters,
        steps=len(losses),
        tokens_rate=rate,
        first_loss=sum(losses[:part]) / part,
        last_loss=sum(losses[-part:]) / part,
        questions=questions,
        plain=scores[0],
        guided=scores[1],
    )
