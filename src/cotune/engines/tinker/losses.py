"""GRPO's loss as rows for a server: advantages, denominators, and the factors that its reduction asks for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cotune.engines.tinker.adapter import Pair, datum
from cotune.engines.tinker.probe import Reduction
from cotune.methods.context_distillation import Floats, batch_weights, is_distilled
from cotune.methods.method import CISPO_CAP
from cotune.rollout.metrics import without_variance
from cotune.types import Distillation, Trajectory

Terms = Mapping[int, tuple[Floats, Floats]]
"""By rollout with an advantage: its tokens' weighted advantages, and log π_old, both (C,), 0 where nothing is trained."""


def server_loss(loss: str, clip: float) -> tuple[str, dict[str, float]]:
    """Return the server's name of a `Method.loss`, and the bounds of its importance ratio."""
    name, low, high = ("cispo", 0.0, CISPO_CAP) if loss == "cispo" else ("ppo", 1 - clip, 1 + clip)
    return name, {"clip_low_threshold": low, "clip_high_threshold": high}


def group_advantages(rewards: Sequence[float], group_size: int) -> Floats:
    """Normalise rewards within each group, INSPO Eq. 3, to (B,); exactly 0 in a group of equal rewards."""
    grouped = np.asarray(rewards, dtype=np.float32).reshape(-1, group_size)
    centred = grouped - grouped.mean(1, keepdims=True)
    advantages = centred / (grouped.std(1, ddof=1, keepdims=True) + np.float32(1e-4))
    advantages[without_variance(rewards, group_size)] = 0.0
    return advantages.astype(np.float64).ravel()


def token_terms(
    trajectories: Sequence[Trajectory],
    group_size: int,
    distillation: Distillation,
    forward: Callable[[Sequence[Pair]], list[Floats]],
    ratios: list[tuple[Floats, Floats]],
) -> Terms:
    """Return the terms of a batch's loss.

    log π_old is the sampler's own, so that the ratio corrects for what sampler and trainer differ by. A rollout that
    is trained on another prompt than it was sampled under has `forward`'s on that prompt. `ratios` takes context ratios
    and weights, for `ratio_metrics`.
    """
    advantages = group_advantages([t.reward for t in trajectories], group_size)
    # Without an advantage nothing is sent, nor paid for.
    sent = {i: t for i, t in enumerate(trajectories) if advantages[i] and any(t.trained_mask)}
    old = {i: np.array(t.logprobs) for i, t in sent.items()}
    distilled = {i: (t.prompt_ids, t.completion_ids) for i, t in sent.items() if is_distilled(t)}
    if distilled:
        old |= zip(distilled, forward(list(distilled.values())), strict=True)
    terms: dict[int, tuple[Floats, Floats]] = {}
    for i, t in sent.items():
        mask = np.array(t.trained_mask)
        weights = batch_weights([t], old[i][None], advantages[[i]], distillation, ratios)[0]
        terms[i] = advantages[i] * weights * mask, old[i] * mask
    return terms


def rows_of(
    trajectories: Sequence[Trajectory],
    terms: Terms,
    part: range,
    loss: str,
    reduction: Reduction,
    multiple: int = 1,
) -> list[Any]:
    """Return the rows of an update on a part of a batch, with advantages scaled so that the server's loss is its loss.

    GRPO's is the mean over rollouts of the mean over own tokens; CISPO's is the mean over own tokens. Rollouts without
    an advantage count in the means. Rows of zeros fill up to a multiple of `multiple` rows.
    """
    rows = [(i, 1.0) for i in part if i in terms and terms[i][0].any()]
    rows += rows[-1:] and [(rows[-1][0], 0.0)] * (-len(rows) % multiple)
    own_tokens = {i: sum(trajectories[i].trained_mask) for i in part}
    data: list[Any] = []
    for i, scale in rows:
        t = trajectories[i]
        positions = len(t.prompt_ids) + len(t.completion_ids) - 1
        scale /= sum(own_tokens.values()) if loss == "cispo" else own_tokens[i] * len(part)
        if reduction == "mean":  # undo what the server divides by
            scale *= positions * len(rows)
        advantages, old = (np.zeros(positions, dtype=np.float32) for _ in terms[i])
        advantages[len(t.prompt_ids) - 1 :] = terms[i][0] * scale
        old[len(t.prompt_ids) - 1 :] = terms[i][1]
        data.append(datum(t.prompt_ids, t.completion_ids, advantages=advantages, logprobs=old))
    return data
