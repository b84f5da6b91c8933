"""The group advantages of a run on veRL."""

import numpy as np
import pytest
import torch

from cotune.engines.verl.settings import ADVANTAGES
from tests.reference_loop import group_advantages


@pytest.mark.parametrize("scaled", [True, False])
def test_advantages_are_the_loops_and_none_where_rewards_are_equal(scaled: bool) -> None:
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    import cotune.engines.verl.losses  # pyright: ignore[reportUnusedImport]  # noqa: F401

    rewards = [0.7] * 8 + [0.0, *[1.0] * 7]
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1)).tolist()
    mask = torch.ones(16, 3)
    mask[:, 1] = 0  # an observation
    token_rewards = torch.zeros(16, 3)
    token_rewards[:, 2] = torch.tensor([rewards[i] for i in order])
    index = np.array(["ab"[i // 8] for i in order], dtype=object)
    advantages, _ = get_adv_estimator_fn(ADVANTAGES)(
        token_level_rewards=token_rewards,
        response_mask=mask,
        index=index,
        config={"norm_adv_by_std_in_grpo": scaled},
    )
    assert advantages[[order.index(i) for i in range(8)]].eq(0).all()
    expected = group_advantages(torch.tensor(rewards), 8)[order]
    if scaled:
        torch.testing.assert_close(advantages, expected[:, None] * mask)
    else:
        assert advantages[order.index(8), 0] == -0.875
