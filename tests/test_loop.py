"""The reference loop's formulas against numbers worked by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from cotune.types import StopReason, Task, Trajectory
from tests.helpers import make_trajectory, under
from tests.policy.tiny import tiny_model, tiny_tokenizer
from tests.reference_loop import group_advantages, grpo_loss, policy_loss

TOKENIZER = tiny_tokenizer()


def test_advantages_by_hand() -> None:
    advantages = group_advantages(torch.tensor([1.0, 0.0, 0.25, 0.25, 2.0, 6.0]), 2)
    # Group 1: deviations ±0.5, sample variance 0.5. Group 3: deviations ±2, variance 8.
    first, third = 0.5 / (math.sqrt(0.5) + 1e-4), 2 / (math.sqrt(8) + 1e-4)
    expected = torch.tensor([first, -first, 0.0, 0.0, -third, third])
    torch.testing.assert_close(advantages, expected)


@pytest.mark.parametrize(("reward", "size"), [(0.7, 8), (100.1, 15), (0.9, 6)])
def test_equal_rewards_have_exactly_no_advantage(reward: float, size: int) -> None:
    advantages = group_advantages(torch.tensor([reward] * size + [0.0, *[1.0] * (size - 1)]), size)
    assert [a == 0 for a in advantages.tolist()] == [True] * size + [False] * size


def two_tokens() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ratios 1.5 and 0.5 in two rollouts; the second rollout's second token is an observation."""
    old = torch.tensor([[-1.0, -2.0], [-0.5, -3.0]])
    new = old + torch.tensor([[math.log(1.5), math.log(0.5)]] * 2)
    return new.requires_grad_(), old, torch.tensor([[1.0, 1.0], [1.0, 0.0]])


def test_the_loss_and_its_gradient_by_hand() -> None:
    new, old, mask = two_tokens()
    loss = grpo_loss(new, old, torch.tensor([1.0, -2.0]), mask, clip=0.2)
    # Rollout 1: min(1.5, 1.2) and min(0.5, 0.8), mean 0.85. Rollout 2: min(−3, −2.4) = −3.
    assert loss.item() == pytest.approx(-(0.85 - 3.0) / 2)
    loss.backward()
    # A clipped token has no gradient; else −ratio · A / tokens of the rollout / rollouts.
    expected = torch.tensor([[0.0, -0.5 / 2 / 2], [1.5 * 2 / 1 / 2, 0.0]])
    torch.testing.assert_close(new.grad, expected)


def trajectory(
    prompt: tuple[int, ...], completion: tuple[int, ...], mask: tuple[int, ...], reward: float
) -> Trajectory:
    tokens = {"prompt_ids": prompt, "completion_ids": completion, "mask": mask}
    return make_trajectory(under(Task("t", "?", ("a",))), reward, **tokens)


UNEQUAL = [trajectory((4, 5, 6), (7, 8, 3), (1, 0, 1), 1.0), trajectory((4,), (8, 3), (1, 1), 0.0)]


def gradient(model: Any, trajectories: list[Trajectory]) -> list[torch.Tensor]:
    loss = policy_loss(model, trajectories, group_size=2, clip=0.2)
    return list(torch.autograd.grad(loss, list(model.parameters())))


def test_a_rollout_that_the_environment_broke_adds_no_gradient() -> None:
    model = tiny_model(TOKENIZER)
    broken = replace(UNEQUAL[1], stop=StopReason.ENVIRONMENT_ERROR)
    unwritten = replace(UNEQUAL[1], mask=(0, 0))
    gradients = gradient(model, [UNEQUAL[0], broken])
    for actual, expected in zip(gradients, gradient(model, [UNEQUAL[0], unwritten]), strict=True):
        torch.testing.assert_close(actual, expected)
    assert broken.generated_tokens == 2  # they were written, and are counted
