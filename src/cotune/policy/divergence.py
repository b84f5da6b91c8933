"""KL(π_p ‖ π_q) per token, exact over the vocabulary, on tokens that were drawn from π_p."""

from collections.abc import Sequence
from typing import Any

import torch

from cotune.types import Trajectory

_TOKENS_AT_ONCE = 128  # whose logits are held as float32


def token_divergence(p: torch.Tensor, q: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return Σ_v p(v) log(p(v) / q(v)) of two policies at a temperature, in nats, of logits (T, V), as float32 (T,)."""
    log_p = torch.log_softmax(p.float() / temperature, -1)
    log_q = torch.log_softmax(q.float() / temperature, -1)
    chance = log_p.exp()
    return torch.where(chance > 0, chance * (log_p - log_q), 0.0).sum(-1)


@torch.no_grad()
def rollout_divergences(
    p: Any, q: Any, trajectories: Sequence[Trajectory], temperature: float
) -> list[tuple[float, int]]:
    """Return the sum of each rollout's own tokens' divergences, and the number of its own tokens.

    Both policies read the prompt that the rollout was sampled under; prompt and observations do not count.

    Args:
        p: the policy that wrote the rollouts, a causal language model; q: the other one.
        temperature: at which they were sampled.
    """
    divergences: list[tuple[float, int]] = []
    for trajectory in trajectories:
        prompt = trajectory.sampled_prompt_ids
        ids = torch.tensor([[*prompt, *trajectory.completion_ids]])
        own_tokens = torch.tensor(trajectory.mask).nonzero()[:, 0]
        # The logits at a position predict the next token.
        positions = own_tokens + len(prompt) - 1
        p_logits, q_logits = (
            model(
                input_ids=ids.to(model.device),
                use_cache=False,
                logits_to_keep=positions.to(model.device),
            )
            .logits[0]
            .to(p.device)
            .split(_TOKENS_AT_ONCE)
            for model in (p, q)
        )
        sums = [
            token_divergence(p_piece, q_piece, temperature).double().sum()
            for p_piece, q_piece in zip(p_logits, q_logits, strict=True)
        ]
        divergences.append((float(sum(sums)), len(own_tokens)))
    return divergences
