"""Context ratios, token weights and denominators against numbers worked by hand."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.methods.context_distillation import (
    RATIO_BINS,
    RATIO_FROM,
    RATIO_TO,
    RatioStatistics,
    batch_weights,
    compares_contexts,
    context_ratios,
    is_distilled,
    is_dropped,
    is_hinted,
    old_logprobs,
    ratio_counts,
    reweighs,
    token_weights,
)
from cotune.types import Assignment, Distillation, Prompt, Task, Trajectory
from tests.helpers import make_trajectory

RATIOS = np.array([0.0, 0.005, 0.01, 1.0, 10.0, 40.0])
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


def test_a_ratio_is_the_quotient_of_the_two_chances() -> None:
    trained = np.log(np.array([0.5, 0.1, 0.3]))
    sampled = np.log(np.array([0.25, 0.5, 0.3]))
    assert context_ratios(trained, sampled) == pytest.approx([2.0, 0.2, 1.0])
    single = context_ratios(trained.astype(np.float32), sampled.astype(np.float32))
    assert single.dtype == np.float64
    untold = np.array([math.nan, sampled[1], math.nan])
    assert context_ratios(trained, untold) == pytest.approx([1.0, 0.2, 1.0])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Distillation(ratio="masked"), [0, 0, 1, 1, 1, 0]),
        (Distillation(ratio="masked", soft=True), [0, 0.5, 1, 1, 1, 0.25]),
        (Distillation(ratio="masked", low=0.0), [1, 1, 1, 1, 1, 0]),
        (Distillation(ratio="masked", low=0.0, soft=True), [1, 1, 1, 1, 1, 0.25]),
        (Distillation(ratio="masked", high=math.inf), [0, 0, 1, 1, 1, 1]),
        (Distillation(ratio="masked", high=math.inf, soft=True), [0, 0.5, 1, 1, 1, 1]),
        (Distillation(ratio="original"), [1] * 6),
        (Distillation(ratio="off"), [1] * 6),
    ],
)
def test_weights_by_hand(settings: Distillation, expected: list[float]) -> None:
    with np.errstate(all="raise"):
        assert token_weights(RATIOS, settings) == pytest.approx(expected)


@given(st.lists(st.floats(0, 1e12)), st.floats(0, 1), st.floats(1.5, 100))
def test_the_soft_mask_never_amplifies_and_spares_what_the_hard_one_keeps(
    ratios: list[float], low: float, high: float
) -> None:
    given_ratios = np.array(ratios, dtype=np.float64)
    hard = token_weights(given_ratios, Distillation(ratio="masked", low=low, high=high))
    soft = token_weights(given_ratios, Distillation(ratio="masked", low=low, high=high, soft=True))
    assert ((soft >= hard) & (soft <= 1)).all()
    assert ((soft == 1) >= (hard == 1)).all()


def test_the_soft_mask_is_continuous_at_its_bounds() -> None:
    beside = np.array([0.01 * (1 - 1e-9), 10 * (1 + 1e-9)])
    assert token_weights(beside, Distillation(ratio="masked", soft=True)) == pytest.approx(
        [1, 1], abs=1e-8
    )


def test_statistics_of_two_processes() -> None:
    here, there = RatioStatistics(), RatioStatistics()
    assert here.metrics() == {}
    here.add(np.array([0.5, 20.0]), np.array([1.0, 0.0]))
    here.add(np.array([]), np.array([]))
    there.add(np.array([0.001, 1.5, 2.0]), np.array([0.1, 1.0, 1.0]))
    here.merge(there)
    here.merge(RatioStatistics())
    assert here.metrics() == pytest.approx(
        {
            "p2o/ratio_min": 0.001,
            "p2o/ratio_mean": 24.001 / 5,
            "p2o/ratio_max": 20.0,
            "p2o/ratio_masked_share": 0.4,
        }
    )
    assert sum(here.counts) == here.count == 5


def test_the_bins_of_ratios_by_hand() -> None:
    low, high, bins = RATIO_FROM, RATIO_TO, RATIO_BINS
    assert (low, high, bins) == (-4.0, 2.0, 24)
    # Below all, on the first edge, just below 1, 1, on the mask's upper bound, above all.
    counts = ratio_counts(np.array([0.0, 0.9e-4, 1e-4, 0.999, 1.0, 10.0, 100.0, 1e9]))
    assert {i: n for i, n in enumerate(counts) if n} == {0: 2, 1: 1, 16: 1, 17: 1, 21: 1, 25: 2}
    assert len(counts) == bins + 2
    assert ratio_counts(np.array([])) == [0] * (bins + 2)
    found = RatioStatistics()
    found.add(np.array([1.0]), np.array([1.0]))
    assert found.histogram() == {"log10_from": low, "log10_to": high, "counts": found.counts}


def test_who_is_hinted_distilled_dropped() -> None:
    drops = Distillation(drop_failed=True)
    kept_prompt = distilled(0.0, sampled_prompt_ids=(1,))  # mode off: trained on what it saw
    instructed = replace(plain(0.0), sampled_prompt_ids=(5, 6))  # an instruction distilled
    rows = [distilled(0.0), distilled(0.1), plain(0.0), kept_prompt, instructed]
    assert [is_hinted(t) for t in rows] == [True, True, False, True, False]
    assert [is_distilled(t) for t in rows] == [True, True, False, False, True]
    assert [is_dropped(t, drops) for t in rows] == [True, False, False, True, False]
    assert not any(is_dropped(t, Distillation(ratio="masked")) for t in rows)


@pytest.mark.parametrize("ratio", ["masked", "masked_signed", "hint", "original", "off"])
def test_what_plain_grpo_could_train_on_needs_no_weights(ratio: Any) -> None:
    settings, drops = Distillation(ratio=ratio), Distillation(ratio=ratio, drop_failed=True)
    assert compares_contexts(settings) == (ratio in ("masked", "masked_signed", "hint"))
    assert reweighs([plain(), distilled()], settings) == compares_contexts(settings)
    assert not reweighs([plain(0.0)], drops)
    assert reweighs([plain(), distilled(0.0)], drops)


# Under the trained prompt: ½/25 (ratio 0.04) and ½ (ratio 2); the plain row's as it was sampled.
UP, DOWN = [1.0, -1.0], [-1.0, 1.0]
TRAINED = np.log(np.array([[0.02, 0.9, 0.5, 1.0], [math.exp(-0.5), 1.0, 1.0, 1.0]]))


@pytest.mark.parametrize(
    ("settings", "first", "advantages"),
    [
        (Distillation(ratio="masked"), [1, 0, 1, 0], UP),
        (Distillation(ratio="masked", low=0.05), [0, 0, 1, 0], UP),
        (Distillation(ratio="masked", low=0.05, soft=True), [0.8, 0, 1, 0], UP),
        (Distillation(ratio="masked", low=0.05, high=1.6, soft=True), [0.8, 0, 0.8, 0], UP),
        (Distillation(ratio="masked", low=0.05, high=1.5), [0, 0, 0, 0], UP),
        (Distillation(ratio="original", low=0.05), [1, 0, 1, 0], UP),
        (Distillation(ratio="hint", low=0.05), [1, 0, 1, 0], UP),
        (Distillation(ratio="off", low=0.05), [1, 0, 1, 0], UP),
        (Distillation(ratio="masked_signed", low=0.05), [1, 0, 1, 0], UP),
        (Distillation(ratio="masked_signed", low=0.05), [0, 0, 1, 0], DOWN),
        (Distillation(ratio="masked_signed", low=0.05), [0, 0, 1, 0], [0.0, 0.0]),
        (Distillation(ratio="masked_signed", low=0.05, soft=True), [0.8, 0, 1, 0], DOWN),
    ],
)
def test_weights_of_a_batch_by_hand(
    settings: Distillation, first: list[float], advantages: list[float]
) -> None:
    statistics = RatioStatistics()
    weights = batch_weights([distilled(), plain()], TRAINED, advantages, settings, statistics)
    assert weights == pytest.approx(np.array([first, [1, 0, 0, 0]]))
    found = statistics.metrics()
    if compares_contexts(settings):
        assert found["p2o/ratio_min"] == pytest.approx(0.04)
        assert found["p2o/ratio_max"] == pytest.approx(2.0)
        assert found["p2o/ratio_masked_share"] == sum(first[i] < 1 for i in (0, 2)) / 2
    else:
        assert not found


@pytest.mark.parametrize("ratio", ["masked", "masked_signed", "hint", "original", "off"])
def test_dropping_failed_hinted_rollouts_spares_the_others(ratio: Any) -> None:
    settings = Distillation(ratio=ratio, drop_failed=True)
    rows = [distilled(0.0), plain(0.0), distilled(1.0)]
    weights = batch_weights(rows, TRAINED[[0, 1, 0]], [-1.0, -1.0, 1.0], settings)
    assert weights.sum(1).tolist() == [0, 1, 2]


def test_the_denominator_is_the_hinted_prompts_in_mode_hint_alone() -> None:
    rows = [distilled(), plain()]
    hint = old_logprobs(rows, TRAINED, Distillation(ratio="hint"))
    assert hint[0].tolist() == [*rows[0].logprobs, TRAINED[0, 3]]
    assert hint[1].tolist() == TRAINED[1].tolist()
    first, *others = rows[0].logprobs
    untold = [replace(rows[0], logprobs=(math.nan, *others)), rows[1]]
    hint = old_logprobs(untold, TRAINED, Distillation(ratio="hint"))
    assert hint[0].tolist() == [TRAINED[0, 0], *others, TRAINED[0, 3]]
    assert first != TRAINED[0, 0]
    for ratio in ("masked", "masked_signed", "original", "off"):
        assert (old_logprobs(rows, TRAINED, Distillation(ratio=ratio)) == TRAINED).all()
