"""What veRL computes of rollouts: advantages as the other engines have them, and policy losses with P²O's signed mask.

veRL's workers import this module as an `external_lib`. veRL's own rejection of tokens does not know advantages, so
`ratio: masked_signed` works differently: the importance weights are 0 for a token whose context ratio is out of
bounds (`rollout_is` with two bounds), and every policy loss of veRL's has a variant that reads them as a mask.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from verl.trainer.ppo.core_algos import (
    POLICY_LOSS_REGISTRY,
    compute_grpo_outcome_advantage,
    register_adv_est,
    register_policy_loss,
)

from cotune.engines.verl.settings import ADVANTAGES, SIGNED_LOSS


@register_adv_est(ADVANTAGES)
def group_advantages(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[str],
    config: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return veRL's GRPO advantages with INSPO's ε, exactly 0 if a group's rewards are equal; and again as returns.

    veRL divides by std + 1e-6, so that the rounded mean of equal rewards would leave advantages of 0.1.

    Args:
        token_level_rewards, response_mask: (B, C); the mask is 1 for the policy's own tokens.
        index: the group of each row.
        config: veRL's section `algorithm`.
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


def signed(base: Any) -> Any:
    """Return a policy loss that leaves out tokens of weight 0 whose advantage is not positive.

    They still count in the divisor. The other weights are not applied: the importance ratio is that of the
    trained prompt (P²O, Eq. 4).
    """

    def loss(
        *,
        advantages: torch.Tensor,
        response_mask: torch.Tensor,
        rollout_is_weights: torch.Tensor,
        **arguments: Any,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        masked = (rollout_is_weights == 0) & (advantages <= 0) & response_mask.bool()
        loss_value, metrics = base(
            advantages=advantages.masked_fill(masked, 0.0), response_mask=response_mask, **arguments
        )
        share = masked.sum() / response_mask.sum().clamp(min=1)
        return loss_value, {**metrics, "actor/signed_masked_share": share.item()}

    return loss


for _name, _loss in list(POLICY_LOSS_REGISTRY.items()):
    if not _name.startswith(SIGNED_LOSS):
        register_policy_loss(f"{SIGNED_LOSS}{_name}")(signed(_loss))
