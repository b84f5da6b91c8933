"""Distillation from a teacher: pull the policy towards what it would write under a hint or an instruction.

p_t = π_θ(· | x, y_<t) is the policy on the plain prompt, q_t = π(· | x̃, y_<t) its teacher, without a
gradient. `KLDistillation` takes KL(p_t ‖ q_t) at rollouts of p, `FilteredDistillation` KL(q_t ‖ p_t) at
successes of q. The reference loop and every engine take their losses from here.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cotune.types import (
    AnyDistillation,
    Distillation,
    FilteredDistillation,
    KLDistillation,
    Trajectory,
)

if TYPE_CHECKING:
    from torch import Tensor

TeacherDistillation = KLDistillation | FilteredDistillation
_NO_TAIL = 1e-7  # the least probability of all tokens outside the top k


def has_teacher(trajectory: Trajectory) -> bool:
    """Return whether a teacher reads the rollout."""
    return bool(trajectory.teacher_prompt_ids)


def teaches(settings: AnyDistillation) -> bool:
    """Return whether the loss has a teacher, so that GRPO's loss is not enough."""
    return not isinstance(settings, Distillation)


@dataclass(frozen=True)
class TokenLosses:
    """The losses of the tokens of some rollouts, each (B, C).

    Attributes:
        losses: g_t · d_t, with the gradient of the policy.
        gaps: log q_t(y_t) − log p_t(y_t), without a gradient.
        gates: g_t, without a gradient.
    """

    losses: "Tensor"
    gaps: "Tensor"
    gates: "Tensor"


def token_losses(
    policy: "Tensor", teacher: "Tensor", ids: "Tensor", settings: TeacherDistillation
) -> TokenLosses:
    """Return the distillation loss of each token, before λ.

    Args:
        policy: logits of p_t, (B, C, V), divided by the temperature.
        teacher: logits of q_t, (B, C, V), likewise.
        ids: the rollouts' tokens, (B, C).
        settings: gate and tokens.
    """
    teacher = teacher.detach()
    p, q = (logprobs_at(logits, ids[..., None])[..., 0] for logits in (policy, teacher))
    gaps = q - p.detach()
    gates = token_gates(gaps, settings)
    if settings.tokens == "sampled":
        reverse = isinstance(settings, KLDistillation)
        divergences = sampled_reverse_kl(p, q) if reverse else q - p
    else:
        divergences = top_k_kl(policy, teacher, settings)
    return TokenLosses(gates * divergences, gaps, gates)


def token_gates(gaps: "Tensor", settings: TeacherDistillation) -> "Tensor":
    """Return g_t of each token: σ(α · gap) (SDAR, arXiv 2605.15155), or 1 without a gate.

    Args:
        gaps: log q_t(y_t) − log p_t(y_t), without a gradient.
    """
    if isinstance(settings, KLDistillation) and settings.gate == "sigmoid":
        return (settings.gate_slope * gaps).sigmoid()
    return gaps.new_ones(gaps.shape)


def sampled_reverse_kl(p: "Tensor", q: "Tensor") -> "Tensor":
    """Return KL(p_t ‖ q_t) estimated by y_t ~ p_t: log p − log q, with gradient (log p − log q) ∇ log p.

    Value and gradient are those of the KL in expectation. (Differentiating log p − log q itself would
    give ∇ log p, which is zero in expectation.)

    Args:
        p: log p_t(y_t), with a gradient.
        q: log q_t(y_t), without.
    """
    still = p.detach()
    return (p - still).exp() * (still - q)


def top_k_kl(policy: "Tensor", teacher: "Tensor", settings: TeacherDistillation) -> "Tensor":
    """Return the KL over the top k tokens and one more for all others, (B, C).

    It is KL(p ‖ q) over the policy's top k for `KLDistillation` (OPCD, arXiv 2602.12275), KL(q ‖ p)
    over the teacher's for `FilteredDistillation`, and at most the KL over the whole vocabulary.

    Args:
        policy, teacher: logits, (B, C, V); the teacher's without a gradient.
    """
    reverse = isinstance(settings, KLDistillation)
    leading, other = (policy, teacher) if reverse else (teacher, policy)
    top = leading.detach().topk(min(settings.top_k, leading.shape[-1]), dim=-1).indices
    first, second = logprobs_at(leading, top), logprobs_at(other, top)
    kl = (first.exp() * (first - second)).sum(-1)
    rest, other_rest = (1 - found.exp().sum(-1) for found in (first, second))
    rest, other_rest = rest.clamp(min=_NO_TAIL), other_rest.clamp(min=_NO_TAIL)
    return kl + rest * (rest.log() - other_rest.log())


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
