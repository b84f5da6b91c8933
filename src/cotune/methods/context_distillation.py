"""Context distillation: weights of tokens sampled under one prompt and trained on another (P²O).

A rollout ỹ is sampled under x̃ = T(x, z) and its gradient is taken on x (arXiv 2603.21877, Eq. 4).
Its tokens are off-policy by the context ratio π_old(ỹ_t|x, ỹ_<t) / π_old(ỹ_t|x̃, ỹ_<t). With `ratio: original`, the
paper's, every weight is 1, and all of Eq. 4 is that the tokens of x are the prompt that is trained. TRL and
tests/reference_loop.py take their weights from here; on veRL `engines/verl/signed_mask.py` applies the same mask.

Two other masks leave tokens out whatever their ratio: `rollout/episode.py` masks what the environment
wrote, and `Trajectory.trained_mask` a whole rollout whose environment broke or that nothing scored.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from cotune.types import Distillation, Trajectory

Floats = NDArray[np.float64]


def is_hinted(trajectory: Trajectory) -> bool:
    """Return whether the rollout was sampled under a hint."""
    return trajectory.assignment.sampled.hint != ""


def is_distilled(trajectory: Trajectory) -> bool:
    """Return whether the rollout is trained on a different prompt than it was sampled under."""
    return trajectory.sampled_prompt_ids != trajectory.prompt_ids


def uses_context_mask(settings: Distillation) -> bool:
    """Return whether tokens are left out by their context ratio, so that GRPO's loss is not enough.

    The loss then needs log-probabilities under both prompts.
    """
    return settings.ratio == "masked_signed"


def needs_token_weights(trajectories: Iterable[Trajectory], settings: Distillation) -> bool:
    """Return whether the loss of these rollouts differs from plain GRPO's on their trained prompts."""
    return uses_context_mask(settings) and any(map(is_distilled, trajectories))


def context_ratios(trained_logprobs: Floats, sampled_logprobs: Floats) -> Floats:
    """Return π_old(ỹ_t|x) / π_old(ỹ_t|x̃) of each token, (C,).

    Args:
        trained_logprobs: log π_old under the prompt that is trained on, (C,).
        sampled_logprobs: log π_old under the prompt used for sampling, (C,). NaN if the sampler
            did not report it; the ratio is then 1.
    """
    trained = np.asarray(trained_logprobs, dtype=np.float64)
    ratios = np.exp(trained - np.asarray(sampled_logprobs, dtype=np.float64))
    return np.where(np.isnan(sampled_logprobs), 1.0, ratios)


def token_weights(ratios: Floats, settings: Distillation, advantage: float) -> Floats:
    """Return the factor of each token's loss, from its context ratio, (C,) to (C,).

    With `ratio: masked_signed` and an advantage that is not above 0 it is 1[low <= r <= high], else 1.
    """
    if not uses_context_mask(settings) or advantage > 0:
        return np.ones_like(ratios, dtype=np.float64)
    return ((ratios >= settings.low) & (ratios <= settings.high)).astype(np.float64)


def ratio_metrics(rollouts: Sequence[tuple[Floats, Floats]]) -> dict[str, float]:
    """Return statistics of the context ratios of the policy's own tokens in distilled rollouts; {} without any.

    Args:
        rollouts: ratios and weights, both (C,), of each.
    """
    ratios = [row for row, _ in rollouts if len(row)]
    if not ratios:
        return {}
    count = sum(map(len, ratios))
    return {
        "p2o/ratio_min": min(float(row.min()) for row in ratios),
        "p2o/ratio_mean": sum(float(row.sum()) for row in ratios) / count,
        "p2o/ratio_max": max(float(row.max()) for row in ratios),
        "p2o/ratio_masked_share": sum(int((row < 1).sum()) for _, row in rollouts) / count,
    }


def batch_weights(
    trajectories: Sequence[Trajectory],
    trained_logprobs: Floats,
    advantages: Sequence[float] | Floats,
    settings: Distillation,
    distilled: list[tuple[Floats, Floats]] | None = None,
) -> Floats:
    """Return the factor of each token's advantage, (B, C); zero for tokens the policy did not write.

    The loss keeps its denominator, the number of own tokens: a masked token counts as one.

    Args:
        trajectories: B rollouts.
        trained_logprobs: log π_old on the trained prompts, (B, C), padded on the right; read for
            distilled rollouts only, with a mask.
        advantages: (B,), whose signs the mask reads.
        settings: the mode.
        distilled: takes ratios and weights of each rollout with a mask, for `ratio_metrics`.
    """
    weights = np.zeros(trained_logprobs.shape)
    for row, trajectory in enumerate(trajectories):
        positions = np.flatnonzero(trajectory.mask)
        weights[row, positions] = 1.0
        if needs_token_weights([trajectory], settings):
            sampled = np.array(trajectory.logprobs)[positions]
            ratios = context_ratios(trained_logprobs[row, positions], sampled)
            weights[row, positions] = token_weights(ratios, settings, float(advantages[row]))
            if distilled is not None:
                distilled.append((ratios, weights[row, positions]))
    return weights
