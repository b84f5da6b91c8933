"""Distillation from a teacher: pull the policy towards what it writes under an instruction.

p_t = π_θ(· | x, y_<t) is the policy on the trained prompt, q_t = π(· | x̃, y_<t) its teacher, the live policy
on the sampled prompt, without a gradient. A last stage (`methods.last_stage`) adds KL(q_t ‖ p_t), averaged
over tokens and rollouts, to GRPO's loss, at successes of q alone. From HDPO (arXiv 2603.23871); the notes
that we worked from give neither its divergence nor its factor, which is 1 here.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cotune.methods.scores import SOLVED_AT
from cotune.types import Trajectory

if TYPE_CHECKING:
    from torch import Tensor

TOP_K = 64
"""The teacher's likeliest tokens, which distributions are compared by; all others count as one."""
_NO_TAIL = 1e-7  # the least probability of all tokens outside the top k


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
