"""Context distillation: weights of tokens sampled under one prompt and trained on another (P²O).

A rollout ỹ is sampled under x̃ = T(x, z) and its gradient is taken on x (arXiv 2603.21877, Eq. 4).
Its tokens are off-policy by the context ratio π_old(ỹ_t|x, ỹ_<t) / π_old(ỹ_t|x̃, ỹ_<t). With `ratio: original`, the
paper's, every weight is 1, and all of Eq. 4 is that the tokens of x are the prompt that is trained. TRL, Tinker and
tests/reference_loop.py take their weights from here; on veRL `engines/verl/losses.py` applies the same mask.

A last stage (`methods.last_stage`) pulls the policy towards a teacher instead. p_t = π_θ(· | x, y_<t) is the policy
on the trained prompt, q_t = π(· | x̃, y_<t) its teacher, the live policy on the sampled prompt, without a gradient.
KL(q_t ‖ p_t), averaged over tokens and rollouts, is added to GRPO's loss, at successes of q alone. From HDPO
(arXiv 2603.23871); the notes that we worked from give neither its divergence nor its factor, which is 1 here.

Two other masks leave tokens out whatever their ratio: `rollout/episode.py` masks what the environment
wrote, and `Trajectory.trained_mask` a whole rollout whose environment broke or that nothing scored.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cotune.methods.method import SOLVED_AT
from cotune.types import Distillation, Trajectory

Floats = NDArray[np.float64]


def is_hinted(trajectory: Trajectory) -> bool:
    """Return whether the rollout was sampled under a hint."""
    return trajectory.assignment.sampled.hint != ""


def is_distilled(trajectory: Trajectory) -> bool:
    """Return whether the rollout is trained on a different prompt than it was sampled under."""
    return trajectory.sampled_prompt_ids != trajectory.prompt_ids


def uses_context_mask(settings: Distillation) -> bool:
    """Return whether tokens are left out by their context ratio: the loss needs logprobs under both prompts."""
    return settings.ratio == "masked_signed"


def needs_token_weights(trajectories: Iterable[Trajectory], settings: Distillation) -> bool:
    """Return whether the loss of these rollouts differs from plain GRPO's on their trained prompts."""
    return uses_context_mask(settings) and any(map(is_distilled, trajectories))


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
        trained_logprobs: log π_old on the trained prompts, (B, C), padded on the right; read for
            distilled rollouts only, with a mask.
        advantages: (B,), whose signs the mask reads.
        distilled: takes ratios and weights of each rollout with a mask, for `ratio_metrics`.
    """
    weights = np.zeros(trained_logprobs.shape)
    for row, trajectory in enumerate(trajectories):
        positions = np.flatnonzero(trajectory.mask)
        weights[row, positions] = 1.0
        if needs_token_weights([trajectory], settings):
            # π_old(ỹ_t|x) / π_old(ỹ_t|x̃); 1 if the sampler did not report the probability.
            sampled = np.array(trajectory.logprobs)[positions]
            ratios = np.exp(trained_logprobs[row, positions].astype(np.float64) - sampled)
            ratios[np.isnan(sampled)] = 1.0
            weights[row, positions] = token_weights(ratios, settings, float(advantages[row]))
            if distilled is not None:
                distilled.append((ratios, weights[row, positions]))
    return weights


if TYPE_CHECKING:
    from torch import Tensor

TOP_K = 64
"""The teacher's likeliest tokens, which distributions are compared by; all others count as one."""
_NO_TAIL = 1e-7  # the least probability of all tokens outside the top k


# ---- a teacher


def successes_teach(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Return the same rollouts, none of whose failures has a teacher."""
    return [t if t.reward >= SOLVED_AT else replace(t, teacher_prompt_ids=()) for t in trajectories]


def token_losses(policy: "Tensor", teacher: "Tensor", ids: "Tensor") -> "tuple[Tensor, Tensor]":
    """Return KL(q_t ‖ p_t), with the policy's gradient, and log q_t(y_t) − log p_t(y_t), without; both (B, C).

    Args:
        policy: logits of p_t, (B, C, V), divided by the temperature.
        teacher: logits of q_t, (B, C, V), likewise.
        ids: the rollouts' tokens, (B, C).
    """
    teacher = teacher.detach()
    p, q = (logprobs_at(logits, ids[..., None])[..., 0] for logits in (policy, teacher))
    return top_k_kl(policy, teacher), q - p.detach()


def top_k_kl(policy: "Tensor", teacher: "Tensor", top_k: int = TOP_K) -> "Tensor":
    """Return KL(q ‖ p) over the teacher's top k tokens and one more for all others, (B, C).

    It is at most the KL over the whole vocabulary.

    Args:
        policy, teacher: logits, (B, C, V); the teacher's without a gradient.
    """
    top = teacher.topk(min(top_k, teacher.shape[-1]), dim=-1).indices
    q = logprobs_at(teacher, top)
    p = logprobs_at(policy, top)
    kl = (q.exp() * (q - p)).sum(-1)
    q_rest, p_rest = (1 - logprobs.exp().sum(-1) for logprobs in (q, p))
    q_rest = q_rest.clamp(min=_NO_TAIL)
    p_rest = p_rest.clamp(min=_NO_TAIL)
    return kl + q_rest * (q_rest.log() - p_rest.log())


def logprobs_at(logits: "Tensor", ids: "Tensor") -> "Tensor":
    """Return the log-probabilities of some tokens, (..., K), from logits (..., V)."""
    return logits.gather(-1, ids) - logits.logsumexp(-1, keepdim=True)


def mean_over_rollouts(tokens: "Tensor", mask: "Tensor") -> "Tensor":
    """Return the mean over rollouts of their token means, as GRPO's loss is taken; scalar.

    Args:
        tokens: (B, C).
        mask: 1 for the policy's own tokens, (B, C).
    """
    return ((tokens * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()
