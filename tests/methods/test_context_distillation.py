"""Context ratios and token weights against numbers worked by hand."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cotune.methods.context_distillation import (
    Floats,
    batch_weights,
    is_distilled,
    is_hinted,
    mean_over_rollouts,
    needs_token_weights,
    ratio_metrics,
    successes_teach,
    token_losses,
    top_k_kl,
    uses_context_mask,
)
from cotune.types import Assignment, Distillation, Prompt, Task, Trajectory
from tests.helpers import make_tasks, make_trajectory

SIGNED = Distillation(ratio="masked_signed")
TASK = Task("t", "?", ("a",))
HINTED = Assignment(TASK, Prompt("i", "think"), Prompt("i"), "i0", 0)
PLAIN = Assignment(TASK, Prompt("i"), Prompt("i"), "i0", 0)


def distilled(reward: float = 1.0, **changes: Any) -> Trajectory:
    """Own tokens at log ½ and log ¼ under the hint, an observed one between them."""
    values: dict[str, Any] = {
        "sampled_prompt_ids": (7, 8),
        "completion_ids": (2, 3, 4),
        "mask": (1, 0, 1),
        "logprobs": (math.log(0.5), 0.0, math.log(0.25)),
    }
    return replace(make_trajectory(HINTED, reward), **(values | changes))


def plain(reward: float = 1.0) -> Trajectory:
    return make_trajectory(PLAIN, reward)  # tokens (2, 3), the first its own


def test_ratio_metrics_by_hand() -> None:
    assert ratio_metrics([]) == ratio_metrics([(np.array([]), np.array([]))]) == {}
    rollouts = [([0.5, 20.0], [1.0, 0.0]), ([], []), ([0.001, 1.5, 2.0], [0.1, 1.0, 1.0])]
    assert ratio_metrics([(np.array(r), np.array(w)) for r, w in rollouts]) == pytest.approx(
        {
            "p2o/ratio_min": 0.001,
            "p2o/ratio_mean": 24.001 / 5,
            "p2o/ratio_max": 20.0,
            "p2o/ratio_masked_share": 0.4,
        }
    )


def test_who_is_distilled_and_who_needs_weights() -> None:
    instructed = replace(plain(0.0), sampled_prompt_ids=(5, 6))  # an instruction distilled
    rows = [distilled(0.0), distilled(0.1), plain(0.0), instructed]
    assert [is_hinted(t) for t in rows] == [True, True, False, False]
    assert [is_distilled(t) for t in rows] == [True, True, False, True]
    assert not needs_token_weights([plain(), distilled()], Distillation(ratio="original"))
    assert not needs_token_weights([plain(), plain()], SIGNED)
    assert needs_token_weights([plain(), distilled()], SIGNED)


# Under the trained prompt: ½/25 (ratio 0.04) and ½ (ratio 2); the plain row's as it was sampled.
UP, DOWN = [1.0, -1.0], [-1.0, 1.0]
TRAINED = np.log(np.array([[0.02, 0.9, 0.5, 1.0], [math.exp(-0.5), 1.0, 1.0, 1.0]]))


@pytest.mark.parametrize(
    ("settings", "expected", "advantages"),
    [
        (SIGNED, [1, 0, 1, 0], DOWN),
        (Distillation(ratio="original", low=0.05), [1, 0, 1, 0], DOWN),
        (Distillation(ratio="masked_signed", low=0.05), [1, 0, 1, 0], UP),
        (Distillation(ratio="masked_signed", low=0.05), [0, 0, 1, 0], DOWN),
        (Distillation(ratio="masked_signed", low=0.05), [0, 0, 1, 0], [0.0, 0.0]),
        (Distillation(ratio="masked_signed", low=0.05, high=1.5), [0, 0, 0, 0], DOWN),
        (Distillation(ratio="masked_signed", low=0.0, high=math.inf), [1, 0, 1, 0], DOWN),
    ],
)
def test_weights_of_a_batch_by_hand(
    settings: Distillation, expected: list[float], advantages: list[float]
) -> None:
    ratios: list[tuple[Floats, Floats]] = []
    weights = batch_weights([distilled(), plain()], TRAINED, advantages, settings, ratios)
    assert weights == pytest.approx(np.array([expected, [1, 0, 0, 0]]))
    metrics = ratio_metrics(ratios)
    if uses_context_mask(settings):
        assert metrics["p2o/ratio_min"] == pytest.approx(0.04)
        assert metrics["p2o/ratio_max"] == pytest.approx(2.0)
        assert metrics["p2o/ratio_masked_share"] == sum(expected[i] < 1 for i in (0, 2)) / 2
    else:
        assert not metrics
    # A probability that the sampler did not report has the ratio 1.
    untold = distilled(logprobs=(math.nan, 0.0, math.log(0.25)))
    ratios.clear()
    weights = batch_weights([untold], TRAINED[:1], advantages[:1], settings, ratios)
    assert weights[0, 0] == 1
    assert not ratios or ratios[0][0] == pytest.approx([1.0, 2.0])


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
    losses, gaps = token_losses(policy, teacher, IDS)
    first = 0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5)
    second = 0.75 * math.log(0.75 / 0.25) + 0.25 * math.log(0.25 / 0.75)
    assert losses[0].tolist() == pytest.approx([first, second], abs=1e-6)
    assert gaps[0].tolist() == pytest.approx(list(GAPS))
    assert not gaps.requires_grad
    losses.sum().backward()
    assert teacher.grad is None
    # The gradient of KL(q ‖ p) by a logit is p − q.
    assert policy.grad is not None
    expected = [0.5 - 0.2, 0.75 - 0.25]
    assert policy.grad[0, :, 1].tolist() == pytest.approx(expected, abs=1e-6)


def log_probs(chances: list[float]) -> torch.Tensor:
    return torch.tensor([[chances]]).log()


def test_beyond_the_top_k_all_tokens_count_as_one() -> None:
    policy, teacher = log_probs([0.6, 0.2, 0.1, 0.1]), log_probs([0.2, 0.2, 0.1, 0.5])

    # The teacher's likeliest is the last, 0.5 against 0.9 for the others.
    expected = 0.5 * math.log(5) + 0.5 * math.log(0.5 / 0.9)
    assert top_k_kl(policy, teacher, 1).item() == pytest.approx(expected)
    expected = 0.2 * math.log(0.2 / 0.6) + 0.5 * math.log(5)
    assert top_k_kl(policy, teacher, 4).item() == pytest.approx(expected, abs=1e-5)


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
