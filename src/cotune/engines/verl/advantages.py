"""GRPO's advantages as the other engines compute them, registered as an estimator of veRL's."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, register_adv_est

from cotune.engines.verl.settings import ADVANTAGES


@register_adv_est(ADVANTAGES)
def group_advantages(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[str],
    config: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return veRL's GRPO advantages with INSPO's ε, exactly 0 if a group's rewards are equal.

    veRL divides by std + 1e-6, so that the rounded mean of equal rewards would leave advantages of 0.1.

    Args:
        token_level_rewards: (B, C).
        response_mask: 1 for the policy's own tokens, (B, C).
        index: the group of each row.
        config: veRL's section `algorithm`.

    Returns:
        advantages and returns, which are the same, (B, C).
    """
    scaled = config is None or config.get("norm_adv_by_std_in_grpo", True)
    advantages, _ = compute_grpo_outcome_advantage(
        token_level_rewards, response_mask, index, epsilon=1e-4, norm_adv_by_std_in_grpo=scaled
    )
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for row, group in enumerate(index):
        groups[group].append(row)
    rewards = token_level_rewards.sum(-1)
    for rows in groups.values():
        if (rewards[rows] == rewards[rows[0]]).all():
            advantages[rows] = 0.0
    return advantages, advantages
