"""KL(π_p ‖ π_q) per token, exact over the vocabulary, on tokens that were drawn from π_p."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from cotune.policy.codec import common_prefix
from cotune.policy.prompt_cache import can_share, prompt_cache
from cotune.types import Trajectory

_LOGITS, _LOGITS_ON_GPU = 2**26, 2**29
"""Logits of one policy that a forward pass may return, unless a single rollout has more."""
_SOFTMAX = 2**24  # of these, taken at a time as float32


def token_divergence(p: torch.Tensor, q: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return Σ_v p(v) log(p(v) / q(v)) of two policies at a temperature, in nats.

    Args:
        p, q: logits, (T, V).
        temperature: divides both, as in sampling; more than 0.

    Returns:
        one value per token, (T,), in float32.
    """
    log_p = torch.log_softmax(p.float() / temperature, -1)
    log_q = torch.log_softmax(q.float() / temperature, -1)
    chance = log_p.exp()
    return torch.where(chance > 0, chance * (log_p - log_q), 0.0).sum(-1)


@torch.no_grad()
def rollout_divergences(
    p: Any,
    q: Any,
    trajectories: Sequence[Trajectory],
    temperature: float,
) -> list[tuple[float, int]]:
    """Return the sum of each rollout's own tokens' divergences, and the number of its own tokens.

    Both policies read the prompt that the rollout was sampled under; prompt and observations do not
    count.

    Args:
        p: the policy that wrote the rollouts, a causal language model; q: the other one.
        trajectories: its rollouts.
        temperature: at which they were sampled.
    """
    logits_at_once = _LOGITS if p.device.type == "cpu" else _LOGITS_ON_GPU
    found: dict[int, tuple[float, int]] = {}
    vocabulary = p.config.get_text_config().vocab_size
    for rows in _batches(trajectories, max(1, logits_at_once // vocabulary)):
        ids, kept, own = _padded([trajectories[row] for row in rows])
        columns = own[:, 1:].any(0).nonzero()[:, 0]  # the head computes no others
        prompts = [trajectories[row].sampled_prompt_ids for row in rows]
        # A prompt's last token predicts the rollout's first.
        shared = min(common_prefix(min(prompts), max(prompts)), *(len(one) - 1 for one in prompts))
        logits = [
            _logits(model, ids.to(model.device), kept.to(model.device), shared, columns)[
                own[:, columns + 1].to(model.device)
            ]
            for model in (p, q)
        ]
        size = max(1, _SOFTMAX // vocabulary)
        pieces = zip(*(part.split(size) for part in logits), strict=True)
        tokens = torch.cat([token_divergence(a, b.to(a.device), temperature) for a, b in pieces])
        counts = own.sum(-1).tolist()
        for row, part in zip(rows, tokens.double().cpu().split(counts), strict=True):
            found[row] = float(part.sum()), len(part)
    return [found[row] for row in range(len(trajectories))]


def _logits(
    model: Any, ids: torch.Tensor, kept: torch.Tensor, shared: int, columns: torch.Tensor
) -> torch.Tensor:
    """Return the logits of some columns, (B, len(columns), V).

    Args:
        ids, kept: tokens and the mask of those that are not padding, (B, L).
        shared: the number of first tokens that all rows have in common, which are fed once.
        columns: from `shared` on.
    """
    shared = shared if can_share(model) else 0
    return model(
        input_ids=ids[:, shared:],
        attention_mask=kept,
        past_key_values=prompt_cache(model, ids[:, :shared], kept[:, :shared]),
        use_cache=False,
        logits_to_keep=columns.to(model.device) - shared,
    ).logits


def _batches(trajectories: Sequence[Trajectory], most: int) -> Iterator[list[int]]:
    """Group rollouts of similar lengths, so that a padded batch has at most `most` tokens."""
    lengths = [len(t.sampled_prompt_ids) + len(t.completion_ids) for t in trajectories]
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        if batch and (len(batch) + 1) * lengths[row] > most:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _padded(rows: Sequence[Trajectory]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens, the mask of those that are not padding, and of the policy's own, all (B, L)."""
    texts = [(*row.sampled_prompt_ids, *row.completion_ids) for row in rows]
    length = max(map(len, texts))
    ids = torch.zeros((len(rows), length), dtype=torch.long)
    kept, own = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    # Padded on the right, where a causal model's earlier tokens do not see it.
    for i, (row, text) in enumerate(zip(rows, texts, strict=True)):
        ids[i, : len(text)] = torch.tensor(text)
        kept[i, : len(text)] = 1
        own[i, len(row.sampled_prompt_ids) : len(text)] = torch.tensor(row.mask, dtype=torch.bool)
    return ids, kept, own
