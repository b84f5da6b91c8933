"""P²O's mask, as veRL's own functions carry it out."""

from typing import Any

import numpy as np
import pytest
import torch

from cotune.engines.verl.settings import SIGNED_LOSS
from cotune.methods.context_distillation import token_weights
from cotune.types import Distillation
from tests.engines.verl.test_settings import make_config


def with_mask(**bounds: float) -> dict[str, Any]:
    """The part of a run file that asks for the signed mask."""
    return {"strategy": {"kind": "p2o", "distillation": {"ratio": "masked_signed", **bounds}}}


def test_the_signed_mask_spares_tokens_of_a_positive_advantage() -> None:
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
    from verl.utils.config import omega_conf_to_dataclass

    import cotune.engines.verl.losses  # noqa: F401  registers the losses

    signed = Distillation(ratio="masked_signed", low=0.1, high=4.0)
    config = make_config(with_mask(low=0.1, high=4.0), kl=0)
    assert config.actor_rollout_ref.model.external_lib == ["cotune.engines.verl.losses"]
    correction, actor = config.algorithm.rollout_correction, config.actor_rollout_ref.actor
    assert actor.policy_loss.loss_mode == f"{SIGNED_LOSS}vanilla"
    actor.rollout_n = 4
    ratios = np.array([[0.05, 1.0, 8.0], [0.05, 0.5, 8.0]])
    advantages = torch.tensor([[2.0] * 3, [-1.0] * 3])
    response_mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    trained = torch.full((2, 3), -1.0, requires_grad=True)
    weights, rejection_mask, _ = compute_rollout_correction_and_rejection_mask(
        old_log_prob=trained.detach(),
        rollout_log_prob=trained.detach() - torch.tensor(np.log(ratios), dtype=torch.float32),
        response_mask=response_mask,
        rollout_is=correction.rollout_is,
        rollout_is_threshold=correction.rollout_is_threshold,
        rollout_rs=correction.rollout_rs,
    )
    assert weights is not None
    loss, metrics = get_policy_loss_fn(actor.policy_loss.loss_mode)(
        old_log_prob=trained.detach(),
        log_prob=trained,
        advantages=advantages,
        response_mask=rejection_mask,
        loss_agg_mode="token-mean",
        config=omega_conf_to_dataclass(actor),
        rollout_is_weights=weights.batch["rollout_is_weights"],
    )
    loss.backward()

    expected = [
        -a * own_tokens * token_weights(row, signed, float(a)) / 5
        for a, row, own_tokens in zip((2.0, -1.0), ratios, response_mask.numpy(), strict=True)
    ]
    assert trained.grad is not None
    np.testing.assert_allclose(trained.grad.numpy(), expected, rtol=1e-6)
    assert expected[0].tolist() == [-0.4] * 3
    assert expected[1].tolist() == [0.0, 0.2, 0.0]
    assert metrics["actor/signed_masked_share"] == pytest.approx(1 / 5)


def test_a_users_own_library_and_loss_are_kept() -> None:
    engine_args = {
        "actor_rollout_ref.model.external_lib": "mine",
        "actor_rollout_ref.actor.policy_loss.loss_mode": "gspo",
    }
    config = make_config(with_mask(), engine_args=engine_args)
    assert config.actor_rollout_ref.model.external_lib[1:] == ["mine"]
    assert config.actor_rollout_ref.actor.policy_loss.loss_mode == f"{SIGNED_LOSS}gspo"
