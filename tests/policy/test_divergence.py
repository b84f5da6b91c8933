"""KL(π_p ‖ π_q) of a token, over the whole vocabulary."""

import math
from itertools import chain

import pytest
import torch

from cotune.policy import divergence
from cotune.policy.divergence import rollout_divergences, token_divergence
from cotune.types import Task, Trajectory
from tests.helpers import make_trajectory, under
from tests.policy.tiny import tiny_model, tiny_tokenizer

P, Q = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]


def logits(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows).log()


def test_by_hand() -> None:
    # 1/2 log 2 + 0 + 1/4 log 1/2
    divergences = token_divergence(logits(P, P), logits(Q, P) + 3.0, 1.0)
    assert divergences.tolist() == pytest.approx([0.25 * math.log(2), 0.0], abs=1e-7)
    # At temperature 1/2 chances are squared: 4, 1, 1 and 1, 1, 4 sixths.
    assert token_divergence(logits(P), logits(Q), 0.5).item() == pytest.approx(math.log(4) / 2)
    # What cannot be drawn adds nothing.
    p = logits([0.5, 0.5, 0.0])
    assert token_divergence(p, logits([0.5, 0.25, 0.25]), 1.0).item() == pytest.approx(
        math.log(2) / 2
    )
    assert token_divergence(logits(P), p, 1.0).item() == math.inf


def rollout(prompt: list[int], completion: list[int], mask: list[int]) -> Trajectory:
    return make_trajectory(
        under(Task("a", "", ())),
        0.0,
        sampled_prompt_ids=tuple(prompt),
        completion_ids=tuple(completion),
        mask=tuple(mask),
    )


def test_own_tokens_are_predicted_from_all_that_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the pieces of a rollout nor the prompt that is trained on change anything."""
    monkeypatch.setattr(divergence, "_TOKENS_AT_ONCE", 2)
    tokenizer = tiny_tokenizer()
    p, q = tiny_model(tokenizer, 1), tiny_model(tokenizer, 2)
    rollouts = [
        rollout([4, 5, 6, 7], [8, 9, 4, 5, 6], [1, 1, 0, 0, 1]),
        rollout([4], [5], [1]),
        rollout([5, 6], [7, 8, 9], [0, 0, 0]),
    ]
    expected: list[list[float]] = []
    for trajectory in rollouts:
        ids = torch.tensor([[*trajectory.sampled_prompt_ids, *trajectory.completion_ids]])
        with torch.no_grad():
            kl = token_divergence(p(ids).logits[0], q(ids).logits[0], 0.7).tolist()
        first = len(trajectory.sampled_prompt_ids)
        expected.append([kl[first + i - 1] for i, is_own in enumerate(trajectory.mask) if is_own])
    assert min(chain(*expected)) > 0.01
    divergences = rollout_divergences(p, q, rollouts, 0.7)
    assert [n for _, n in divergences] == [3, 1, 0]
    assert [total for total, _ in divergences] == pytest.approx(list(map(sum, expected)), rel=1e-4)
    assert [total for total, _ in rollout_divergences(p, p, rollouts, 1.0)] == [0.0] * 3
