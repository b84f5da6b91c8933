"""One update on a server is one step of the reference loop; what is sent, and what is not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

pytest.importorskip("tinker", reason="needs the SDK: pip install 'cotune[tinker]'")

from cotune.engines.tinker.run import rows_of, server_loss, token_terms
from cotune.engines.tinker.server_policy import Adapter
from cotune.policy.codec import HFCodec
from cotune.types import Distillation, Trajectory
from tests.engines.tinker.fake_server import FakeServer
from tests.engines.tinker.parity import GROUP, check_log_probabilities, check_update, rollouts
from tests.engines.tinker.setup import adapter_of
from tests.reference_loop import group_advantages


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("ratio", ["original", "masked_signed"])
def test_an_update_is_a_step_of_the_reference_loop(
    ratio: str, reduction: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer(policy, reduction=reduction).install(monkeypatch)
    metrics = check_update(adapter_of(server), policy, tmp_path, ratio, reduction)
    assert (metrics.get("p2o/ratio_masked_share", 0) > 0) == (ratio == "masked_signed")


def test_log_probabilities_of_sampler_forward_and_peft_are_equal(
    adapter: Adapter, policy: str, tmp_path: Path
) -> None:
    check_log_probabilities(adapter, policy, tmp_path)


@pytest.fixture
def batch(adapter: Adapter, policy: str) -> list[Trajectory]:
    return rollouts(adapter, HFCodec(AutoTokenizer.from_pretrained(policy)))


def test_rows_without_an_advantage_are_neither_sent_nor_scored(
    adapter: Adapter, batch: list[Trajectory]
) -> None:
    scored: list[Any] = []

    def forward(pairs: Any) -> Any:
        scored.extend(pairs)
        return adapter.forward(pairs)

    terms = token_terms(batch, GROUP, Distillation(), forward, [])
    advantages = group_advantages(torch.tensor([t.reward for t in batch]), GROUP).tolist()
    expected = [i for i, a in enumerate(advantages) if a and any(batch[i].trained_mask)]
    assert list(terms) == expected
    assert 1 not in expected  # broken
    assert not set(expected) & set(range(3 * GROUP, 4 * GROUP))  # all rewards are equal
    assert len(scored) == sum(i >= 2 * GROUP for i in expected)
    data = rows_of(batch, terms, range(len(batch)), "grpo", "sum")
    assert len(data) == len(expected)
    for row in data:
        on = row.loss_fn_inputs["advantages"].to_numpy() != 0
        assert 0 < on.sum() < len(on)  # no prompt, no observation
    # A mini-batch has its own denominators, and without an advantage no rows.
    half = rows_of(batch, terms, range(2 * GROUP), "grpo", "sum")
    of_half, of_batch = (rows[0].loss_fn_inputs["advantages"].to_numpy() for rows in (half, data))
    assert np.allclose(of_half, 2 * of_batch, rtol=1e-6)
    assert rows_of(batch, terms, range(3 * GROUP, 4 * GROUP), "grpo", "sum", 8) == []


def test_a_compiling_server_gets_multiples_of_its_rows(
    adapter: Adapter, batch: list[Trajectory]
) -> None:
    terms = token_terms(batch, GROUP, Distillation(), adapter.forward, [])
    data = rows_of(batch, terms, range(len(batch)), "grpo", "mean", 8)
    assert len(data) % 8 == 0
    filled = [row for row in data if not row.loss_fn_inputs["advantages"].to_numpy().any()]
    assert len(filled) == len(data) - len(terms)


def test_cispo_is_a_mean_over_tokens(adapter: Adapter, batch: list[Trajectory]) -> None:
    """FST's loss: each token counts the same, and the ratio is bounded by the cap alone."""
    terms = token_terms(batch, GROUP, Distillation(), adapter.forward, [])
    data = rows_of(batch, terms, range(len(batch)), "cispo", "sum")
    tokens = sum(sum(t.trained_mask) for t in batch)
    for row, (advantages, _) in zip(data, terms.values(), strict=True):
        sent_advantages = row.loss_fn_inputs["advantages"].to_numpy()[-len(advantages) :]
        assert np.allclose(sent_advantages, advantages / tokens, rtol=1e-5)
    assert server_loss("cispo", 0.2)[1] == {"clip_low_threshold": 0.0, "clip_high_threshold": 5.0}
    assert server_loss("grpo", 0.2)[1] == {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
