"""The reference loop's context distillation: every mode against a loss worked by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cotune.types import Assignment, Distillation, Prompt, StopReason, Task, Trajectory, Turn
from tests.reference_loop import policy_loss, teacher_loss

TASK = Task("t", "?", ("a",))


class TableModel(torch.nn.Module):
    """A policy of two tokens: each chance of token 1 is a parameter, by token and position before.

    `chances` maps the first prompt token to P(1) at the first and the second completion token.
    """

    device = torch.device("cpu")

    def __init__(self, chances: dict[int, tuple[float, float]]) -> None:
        super().__init__()
        odds = [[math.log(p / (1 - p)) for p in chances[key]] for key in sorted(chances)]
        self.row = {key: row for row, key in enumerate(sorted(chances))}
        self.logit = torch.nn.Parameter(torch.tensor(odds))

    def forward(self, input_ids: Any, logits_to_keep: int, **_: Any) -> Any:
        rows = torch.tensor([self.row[int(ids[0])] for ids in input_ids])
        logits = torch.zeros(len(rows), logits_to_keep, 2)
        logits[:, :2, 1] = self.logit[rows]
        return SimpleNamespace(logits=logits)


def rollout(prompt: int, sampled: tuple[float, float], reward: float, hint: str) -> Trajectory:
    """Token 1 twice after a prompt of one token; under its hint it had the chances `sampled`."""
    assignment = Assignment(TASK, Prompt("i", hint), Prompt("i"), "i0", 0)
    sampled_prompt = (9, prompt) if hint else (prompt,)
    chances = tuple(math.log(p) for p in sampled)
    return Trajectory(
        assignment, sampled_prompt, (prompt,), (1, 1), (1, 1), chances, (Turn(""),),
        StopReason.ANSWERED, None, reward,
    )  # fmt: skip


# Trained prompts 3, 4, 5; one group whose advantages are ±A, another whose are ±A.
CHANCES = {3: (0.1, 0.4), 4: (0.6, 0.6), 5: (0.2, 0.8)}
A = 0.5 / (math.sqrt(0.5) + 1e-4)
BATCH = [
    rollout(3, (0.8, 0.5), 1.0, "h"),  # context ratios 0.125 and 0.8
    rollout(4, (0.6, 0.6), 0.0, ""),
    rollout(5, (0.25, 0.2), 0.0, "h"),  # context ratios 0.8 and 4
    rollout(4, (0.6, 0.6), 1.0, ""),
]


def loss_and_gradient(settings: Distillation | None) -> tuple[float, Any]:
    model = TableModel(CHANCES)
    model_as_policy: Any = model
    loss = policy_loss(model_as_policy, BATCH, 2, 0.2, distillation=settings)
    loss.backward()
    assert model.logit.grad is not None
    # d log P(1) / d logit = 1 − P(1); divided out, what is left is the token's weight in the loss.
    slopes = torch.tensor([[1 - p for p in CHANCES[key]] for key in (3, 4, 5)])
    return loss.item(), model.logit.grad / slopes


@pytest.mark.parametrize(
    ("settings", "first", "third"),
    [
        # What each token's advantage is multiplied by in the hinted rollouts (A and −A).
        (Distillation(ratio="original"), (1, 1), (1, 1)),
        (Distillation(ratio="masked_signed"), (1, 1), (1, 1)),
        (None, (1, 1), (1, 1)),
        (Distillation(ratio="masked_signed", low=0.25, high=2.0), (1, 1), (1, 0)),
        (Distillation(ratio="masked_signed", low=0.9, high=2.0), (1, 1), (0, 0)),
    ],
)
def test_masked_tokens_weigh_nothing_and_count_in_the_denominator(
    settings: Distillation | None, first: tuple[float, float], third: tuple[float, float]
) -> None:
    loss, weights = loss_and_gradient(settings)
    # At ratio 1 a token's loss is its advantage; two tokens a rollout, four rollouts.
    expected = -A * (sum(first) / 2 - 1 - sum(third) / 2 + 1) / 4
    assert loss == pytest.approx(expected, abs=1e-6)
    per_token = torch.tensor(
        [
            [-A * first[0] / 2 / 4, -A * first[1] / 2 / 4],
            [0.0, 0.0],  # the two plain rollouts have opposite advantages
            [A * third[0] / 2 / 4, A * third[1] / 2 / 4],
        ]
    )
    torch.testing.assert_close(weights, per_token, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_a_teacher_reads_the_rollout_under_its_own_prompt(temperature: float) -> None:
    """Prompt 5 is the teacher's of the first rollout; the second has none, and counts as 0."""
    model: Any = TableModel({key: chances for key, chances in CHANCES.items() if key != 4})
    with torch.no_grad():
        model.logit *= temperature
    batch = [replace(BATCH[0], teacher_prompt_ids=(5,)), replace(BATCH[0], prompt_ids=(5,))]
    loss = teacher_loss(model, batch, temperature)
    # The chances of token 1: the policy's 0.1 and 0.4, the teacher's 0.2 and 0.8.
    first = 0.2 * math.log(0.2 / 0.1) + 0.8 * math.log(0.8 / 0.9)
    second = 0.8 * math.log(0.8 / 0.4) + 0.2 * math.log(0.2 / 0.6)
    assert loss.item() == pytest.approx((first + second) / 4, abs=1e-6)
    loss.backward()
    scale = 1 / 4 / temperature
    expected = torch.tensor([scale * (0.1 - 0.2), scale * (0.4 - 0.8)])
    torch.testing.assert_close(model.logit.grad[0], expected, atol=1e-6, rtol=1e-5)
    assert model.logit.grad[1].tolist() == [0.0, 0.0]
    assert teacher_loss(model, batch[1:]).item() == 0
