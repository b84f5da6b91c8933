"""P²O's signed mask as a policy loss of veRL's; veRL's workers import this module as an `external_lib`.

veRL's own rejection of tokens does not know advantages, so `ratio: masked_signed` works differently: the
importance weights are 0 for a token whose context ratio is out of bounds (`rollout_is` with two bounds), and
every policy loss of veRL's has a variant that reads them as a mask.
"""

from typing import Any

import torch
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, register_policy_loss

from cotune.engines.verl.settings import SIGNED_LOSS


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
