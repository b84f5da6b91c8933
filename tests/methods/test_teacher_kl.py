"""A teacher's losses and their gradients, against numbers worked out by hand on two tokens."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from cotune.methods.context_distillation import (
    mean_over_rollouts,
    successes_teach,
    token_losses,
    top_k_kl,
)
from cotune.types import Assignment, Prompt
from tests.helpers import make_tasks, make_trajectory

P1 = (0.5, 0.75)  # the policy's chance of token 1 at the first and at the second token
Q1 = (0.2, 0.25)  # the teacher's
IDS = torch.tensor([[0, 1]])


def logits(chances: Any) -> torch.Tensor:
    """Logits (1, 2, 2) whose second entry alone is not 0; a leaf."""
    values = [[[0.0, math.log(p / (1 - p))] for p in chances]]
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


GAPS = (math.log(0.8 / 0.5), math.log(0.25 / 0.75))  # log q − log p of the tokens 0 and 1


def test_over_all_tokens_it_is_the_kl_of_both_distributions() -> None:
    policy, teacher = logits(P1), logits(Q1)
    losses, _gaps = token_losses(policy, teacher, IDS)
    first = 0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5)
    second = 0.75 * math.log(0.75 / 0.25) + 0.25 * math.log(0.25 / 0.75)
    assert losses[0].tolist() == pytest.approx([first, second], abs=1e-6)
    losses.sum().backward()
    assert teacher.grad is None
    # The gradient of KL(q ‖ p) by a logit is p − q.
    assert policy.grad is not None
    expected = [0.5 - 0.2, 0.75 - 0.25]
    assert policy.grad[0, :, 1].tolist() == pytest.approx(expected, abs=1e-6)


def at(chances: list[float]) -> torch.Tensor:
    return torch.tensor([[chances]]).log()


def test_beyond_the_top_k_all_tokens_count_as_one() -> None:
    policy, teacher = at([0.6, 0.2, 0.1, 0.1]), at([0.2, 0.2, 0.1, 0.5])

    # The teacher's likeliest is the last, 0.5 against 0.9 for the others.
    expected = 0.5 * math.log(5) + 0.5 * math.log(0.5 / 0.9)
    assert top_k_kl(policy, teacher, 1).item() == pytest.approx(expected)
    expected = 0.2 * math.log(0.2 / 0.6) + 0.5 * math.log(5)
    assert top_k_kl(policy, teacher, 4).item() == pytest.approx(expected, abs=1e-5)


def test_gaps_have_no_gradient() -> None:
    _losses, gaps = token_losses(logits(P1), logits(Q1), IDS)
    assert gaps[0].tolist() == pytest.approx(list(GAPS))
    assert not gaps.requires_grad


def test_a_rollout_counts_by_the_mean_of_its_own_tokens() -> None:
    tokens = torch.tensor([[2.0, 4.0, 9.0], [1.0, 9.0, 9.0], [9.0, 9.0, 9.0]])
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert mean_over_rollouts(tokens, mask).item() == pytest.approx((3 + 1 + 0) / 3)


def test_successes_alone_have_a_teacher() -> None:
    assignment = Assignment(make_tasks(1)[0], Prompt("Best."), Prompt("First."), "i1", 0)
    rewards = [1.0, 0.0, 0.4, 0.5]
    batch = [replace(make_trajectory(assignment, r), teacher_prompt_ids=(1, 2)) for r in rewards]
    trained = successes_teach(batch)
    assert [bool(t.teacher_prompt_ids) for t in trained] == [r >= 0.5 for r in rewards]
    assert [replace(t, teacher_prompt_ids=(1, 2)) for t in trained] == batch
