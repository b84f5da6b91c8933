"""A teacher's losses and their gradients, against numbers worked out by hand on two tokens."""

import math
from typing import Any

import pytest
import torch

from cotune.methods.teacher_kl import (
    logprobs_at,
    mean_over_rollouts,
    sampled_reverse_kl,
    token_losses,
    top_k_kl,
)
from cotune.types import FilteredDistillation, KLDistillation

LN2, LN3 = math.log(2), math.log(3)
P1 = (0.5, 0.75)  # the policy's chance of token 1 at the first and at the second token
Q1 = (0.2, 0.25)  # the teacher's
IDS = torch.tensor([[0, 1]])
UNGATED = KLDistillation(kind="kl", gate="none")
OVER_ALL = KLDistillation(kind="kl", gate="none", tokens="top_k")


def logits(chances: Any) -> torch.Tensor:
    """Logits (1, 2, 2) whose second entry alone is not 0; a leaf."""
    values = [[[0.0, math.log(p / (1 - p))] for p in chances]]
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def losses(settings: Any) -> tuple[list[float], list[float]]:
    """Each token's loss, and its gradient by the policy's logit of token 1."""
    policy, teacher = logits(P1), logits(Q1)
    found = token_losses(policy, teacher, IDS, settings)
    found.losses.sum().backward()
    assert policy.grad is not None
    assert teacher.grad is None
    return found.losses[0].tolist(), policy.grad[0, :, 1].tolist()


GAPS = (math.log(0.8 / 0.5), math.log(0.25 / 0.75))  # log q − log p of the tokens 0 and 1
SLOPES = (-0.5, 0.25)  # d log p(y) / d logit of token 1: −P(1) for token 0, 1 − P(1) for token 1


def test_a_sampled_token_estimates_the_reverse_kl() -> None:
    values, gradients = losses(UNGATED)
    assert values == pytest.approx([-GAPS[0], -GAPS[1]])
    assert gradients == pytest.approx([-GAPS[0] * SLOPES[0], -GAPS[1] * SLOPES[1]])


@pytest.mark.parametrize(("slope", "gates"), [(1.0, (0.8 / 1.3, 0.25)), (2.0, (0.64 / 0.89, 0.1))])
def test_the_gate_softens_what_the_teacher_rejects(
    slope: float, gates: tuple[float, float]
) -> None:
    """σ(α log(q / p)) is q^α / (q^α + p^α)."""
    values, gradients = losses(KLDistillation(kind="kl", gate_slope=slope))
    assert values == pytest.approx([-g * gap for g, gap in zip(gates, GAPS, strict=True)])
    expected = [-g * gap * s for g, gap, s in zip(gates, GAPS, SLOPES, strict=True)]
    assert gradients == pytest.approx(expected)


def test_over_all_tokens_it_is_the_kl_of_both_distributions() -> None:
    values, gradients = losses(OVER_ALL)
    first = 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)
    second = 0.25 * math.log(0.25 / 0.75) + 0.75 * LN3
    assert values == pytest.approx([first, second], abs=1e-6)
    # d KL / d logit of token 1 = P(1) (1 − P(1)) (log-odds of the policy − log-odds of the teacher).
    assert gradients == pytest.approx([0.25 * math.log(4), 0.1875 * (LN3 + LN3)], abs=1e-6)


def test_the_sampled_estimate_has_the_kls_value_and_gradient_in_expectation() -> None:
    torch.manual_seed(1)
    policy = torch.randn(1, 1, 5, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(1, 1, 5, dtype=torch.float64)
    chances = policy.detach().softmax(-1)[0, 0]
    ids = torch.arange(5)[None, None]
    p, q = logprobs_at(policy, ids)[0, 0], logprobs_at(teacher, ids)[0, 0]
    estimate = (chances * sampled_reverse_kl(p, q)).sum()
    exact = top_k_kl(policy, teacher, OVER_ALL).sum()
    assert estimate.item() == pytest.approx(exact.item(), abs=1e-6)
    (one,) = torch.autograd.grad(estimate, policy, retain_graph=True)
    (other,) = torch.autograd.grad(exact, policy)
    torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def at(chances: list[float]) -> torch.Tensor:
    return torch.tensor([[chances]]).log()


def test_beyond_the_top_k_all_tokens_count_as_one() -> None:
    policy, teacher = at([0.6, 0.2, 0.1, 0.1]), at([0.2, 0.2, 0.1, 0.5])

    def kl(kind: Any, k: int) -> float:
        return top_k_kl(policy, teacher, kind(top_k=k)).item()

    def reverse(top_k: int) -> Any:
        return KLDistillation(kind="kl", tokens="top_k", top_k=top_k)

    def forward(top_k: int) -> Any:
        return FilteredDistillation(kind="filtered", top_k=top_k)

    # The policy's two likeliest, 0.2 against 0.6 for the others.
    assert kl(reverse, 2) == pytest.approx(0.6 * LN3 - 0.2 * LN3)
    assert kl(reverse, 4) == pytest.approx(0.6 * LN3 + 0.1 * math.log(0.2), abs=1e-5)
    # The teacher's likeliest is the last, 0.5 against 0.9 for the others.
    assert kl(forward, 1) == pytest.approx(0.5 * math.log(5) + 0.5 * math.log(0.5 / 0.9))


def test_filtered_raises_the_tokens_of_a_success() -> None:
    values, gradients = losses(FilteredDistillation(kind="filtered", tokens="sampled"))
    assert values == pytest.approx(list(GAPS))
    assert gradients == pytest.approx([-s for s in SLOPES])
    # Over all tokens, the gradient of KL(q ‖ p) by a logit is p − q.
    _, gradients = losses(FilteredDistillation(kind="filtered"))
    assert gradients == pytest.approx([0.5 - 0.2, 0.75 - 0.25], abs=1e-6)


def test_gaps_and_gates_are_told_without_a_gradient() -> None:
    found = token_losses(logits(P1), logits(Q1), IDS, KLDistillation(kind="kl", gate_slope=1.0))
    assert found.gaps[0].tolist() == pytest.approx(list(GAPS))
    assert found.gates[0].tolist() == pytest.approx([0.8 / 1.3, 0.25])
    assert not found.gaps.requires_grad
    assert not found.gates.requires_grad


def test_a_rollout_counts_by_the_mean_of_its_own_tokens() -> None:
    tokens = torch.tensor([[2.0, 4.0, 9.0], [1.0, 9.0, 9.0], [9.0, 9.0, 9.0]])
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert mean_over_rollouts(tokens, mask).item() == pytest.approx((3 + 1 + 0) / 3)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"weight": 0}, "weight is 0; expected more than 0"),
        ({"top_k": 0}, "top_k is 0; expected 1 or more"),
        ({"gate_slope": 0.0}, "gate_slope is 0.0; expected more than 0"),
        ({"ema_decay": 1.0}, "ema_decay is 1.0; expected 0 <= ema_decay < 1"),
    ],
)
def test_values_without_a_meaning_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        KLDistillation(kind="kl", **fields)
