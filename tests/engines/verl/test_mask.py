"""P²O's mask, as veRL's own functions carry it out."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from cotune.engines.verl.settings import LOSS_WITH_HINTS, SIGNED_LOSS, rejection_bounds
from cotune.methods.context_distillation import context_ratios, token_weights
from cotune.types import Distillation
from tests.engines.verl.test_settings import made

RATIOS = st.floats(-18, 18).map(np.exp)  # of what veRL tells apart: within e±20


@given(
    st.lists(RATIOS, min_size=1, max_size=8),
    st.one_of(st.just(0.0), st.floats(1e-6, 1)),
    st.floats(1.001, 1e6),
)
def test_verl_keeps_the_tokens_whose_context_ratio_lies_in_the_bounds(
    ratios: list[float], low: float, high: float
) -> None:
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    bounds = Distillation(ratio="masked", low=low, high=high)
    # float32 cannot tell a ratio from a bound that it all but equals
    assume(all(abs(r / b - 1) > 1e-4 for r in ratios for b in (low, high) if b))
    sampled = np.full(len(ratios), -30.0)
    trained = sampled + np.log(ratios)
    _, kept, _ = compute_rollout_correction_and_rejection_mask(
        old_log_prob=torch.tensor(trained, dtype=torch.float32)[None],
        rollout_log_prob=torch.tensor(sampled, dtype=torch.float32)[None],
        response_mask=torch.ones(1, len(ratios)),
        rollout_is=None,
        rollout_rs="token_k1",
        rollout_rs_threshold=rejection_bounds(bounds),
    )
    expected = token_weights(context_ratios(trained, sampled), bounds)
    assert kept[0].tolist() == expected.tolist()


@pytest.fixture
def process_group(tmp_path: Path) -> Any:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_the_divisor_stays_all_own_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import partial

    from verl.utils import tensordict_utils as tu
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine.fsdp import transformer_impl as fsdp
    from verl.workers.utils.losses import ppo_loss

    section = made(distillation=Distillation(ratio="masked"), kl=0).actor_rollout_ref.actor
    assert section.loss_agg_mode == LOSS_WITH_HINTS
    section.rollout_n = 4
    config: Any = omega_conf_to_dataclass(section)
    own = [[1, 1, 1, 0, 1], [1, 1, 0]]  # observations are no own tokens
    kept = [[1, 0, 1, 0, 0], [0, 1, 0]]
    advantages = [[2.0] * 5, [-1.0] * 3]
    logprobs = [torch.full((1 + len(row),), -1.0) for row in own]  # each after one prompt token

    def nested(rows: list[Any], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        tensors = [torch.as_tensor(row, dtype=dtype) for row in rows]
        return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)

    flat = torch.cat(logprobs).requires_grad_()
    data = tu.get_tensordict(
        {
            "prompts": nested([[1], [1]], torch.int64),
            "responses": nested([[5] * 5, [5] * 3], torch.int64),
            "loss_mask": nested(own, torch.int64),
            "response_mask": nested(kept, torch.int64),
            "old_log_probs": nested([[-1.0] * 5, [-1.0] * 3]),
            "advantages": nested(advantages),
        },
        {"global_batch_size": 2},
    )

    def forward_step(micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
        loss, _ = loss_function(model_output={"log_probs": flat}, data=micro_batch)
        return loss, {}

    engine = SimpleNamespace(
        ulysses_sequence_parallel_size=1,
        get_data_parallel_group=lambda: None,
        get_data_parallel_size=lambda: 1,
        _gradient_sync_context=lambda **_: nullcontext(),
        forward_step=forward_step,
    )
    monkeypatch.setattr(fsdp, "get_device_id", lambda: "cpu")
    monkeypatch.setattr(fsdp, "prepare_micro_batches", lambda data, **_: ([data], None))
    monkeypatch.setattr(fsdp, "postprocess_batch_func", lambda **_: None)
    batch: Any = fsdp.FSDPEngine.forward_backward_batch
    batch(engine, data, partial(ppo_loss, config))

    # A token's log-probability stands at the position before it; the last position has none.
    assert flat.grad is not None
    first, second = flat.grad.split([6, 4])
    divisor = sum(map(sum, own))
    for gradient, row, weight in ((first, kept[0], 2.0), (second, kept[1], -1.0)):
        expected = [-weight * k / divisor for k in row]
        assert gradient[:-1].tolist() == pytest.approx(expected)


def test_the_signed_mask_spares_tokens_of_a_positive_advantage() -> None:
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
    from verl.utils.config import omega_conf_to_dataclass

    import cotune.engines.verl.signed_mask  # noqa: F401  registers the losses

    signed = Distillation(ratio="masked_signed", low=0.1, high=4.0)
    found = made(distillation=signed, kl=0)
    assert found.actor_rollout_ref.model.external_lib == ["cotune.engines.verl.signed_mask"]
    correction, actor = found.algorithm.rollout_correction, found.actor_rollout_ref.actor
    assert actor.policy_loss.loss_mode == f"{SIGNED_LOSS}vanilla"
    actor.rollout_n = 4
    ratios = np.array([[0.05, 1.0, 8.0], [0.05, 0.5, 8.0]])
    advantages = torch.tensor([[2.0] * 3, [-1.0] * 3])
    own = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    trained = torch.full((2, 3), -1.0, requires_grad=True)
    weights, kept, _ = compute_rollout_correction_and_rejection_mask(
        old_log_prob=trained.detach(),
        rollout_log_prob=trained.detach() - torch.tensor(np.log(ratios), dtype=torch.float32),
        response_mask=own,
        rollout_is=correction.rollout_is,
        rollout_is_threshold=correction.rollout_is_threshold,
        rollout_rs=correction.rollout_rs,
    )
    assert weights is not None
    loss, metrics = get_policy_loss_fn(actor.policy_loss.loss_mode)(
        old_log_prob=trained.detach(),
        log_prob=trained,
        advantages=advantages,
        response_mask=kept,
        loss_agg_mode="token-mean",
        config=omega_conf_to_dataclass(actor),
        rollout_is_weights=weights.batch["rollout_is_weights"],
    )
    loss.backward()

    expected = [
        -a * own_tokens * token_weights(row, signed, float(a)) / 5
        for a, row, own_tokens in zip((2.0, -1.0), ratios, own.numpy(), strict=True)
    ]
    assert trained.grad is not None
    np.testing.assert_allclose(trained.grad.numpy(), expected, rtol=1e-6)
    assert expected[0].tolist() == [-0.4] * 3
    assert expected[1].tolist() == [0.0, 0.2, 0.0]
    assert metrics["actor/signed_masked_share"] == pytest.approx(1 / 5)


def test_a_users_own_library_and_loss_are_kept() -> None:
    given = {
        "actor_rollout_ref.model.external_lib": "mine",
        "actor_rollout_ref.actor.policy_loss.loss_mode": "gspo",
    }
    found = made(distillation=Distillation(ratio="masked_signed"), engine_args=given)
    assert found.actor_rollout_ref.model.external_lib[1:] == ["mine"]
    assert found.actor_rollout_ref.actor.policy_loss.loss_mode == f"{SIGNED_LOSS}gspo"
