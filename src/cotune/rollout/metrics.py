"""The numbers of a rollout batch."""

import re
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from cotune.methods.context_distillation import is_hinted
from cotune.run.events import (
    ENVIRONMENT_ERROR_SHARE,
    FAILED_CALLS,
    FAILED_SEARCH_SHARE,
    truncation_metrics,
)
from cotune.types import SEARCH_FAILED, StopReason, Trajectory

_NO_CALLS = ("answer", "call", "invalid")  # "call": of no known tool, or in the last turn
_NOT_IN_A_NAME = re.compile(r"[^\w.-]+")  # metric names; an environment may use any text


def trajectory_metrics(trajectories: Sequence[Trajectory], group_size: int) -> dict[str, float]:
    """Return the metrics of a batch; `zero_advantage_share` is the share of groups without a gradient.

    With hinted rollouts also their share, and the zero-advantage share among groups with a hinted rollout and among the
    others. `truncated/<limit>` is the share that a limit cut off, `actions/<kind>` the mean number of turns per rollout
    with that kind of action ("2_calls" for a turn with two), and `actions_failed/<kind>` the share of these turns that
    went wrong. These and the shares of `_outages` are left out if they are zero.
    """
    count = len(trajectories)
    rewards = [t.reward for t in trajectories]
    flat = without_variance(rewards, group_size)
    return {
        **_hint_metrics(trajectories, group_size),
        "reward_mean": sum(rewards) / (sum(t.scored for t in trajectories) or 1),
        "zero_advantage_share": len(flat) * group_size / count,
        "turns_mean": sum(len(t.turns) for t in trajectories) / count,
        "prompt_tokens_mean": sum(len(t.sampled_prompt_ids) for t in trajectories) / count,
        "response_tokens_mean": sum(t.generated_tokens for t in trajectories) / count,
        "generated_tokens": float(sum(t.generated_tokens for t in trajectories)),
        "completion_tokens_mean": sum(len(t.completion_ids) for t in trajectories) / count,
        "answered_share": fmean(t.answer is not None and not t.truncated_by for t in trajectories),
        **truncation_metrics(trajectories),
        "turn_error_share": sum(any(turn.error for turn in t.turns) for t in trajectories) / count,
        **_outages(trajectories),
        **_actions(trajectories),
        **_reward_parts(trajectories),
    }


def _outages(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the shares of rollouts that failed through no fault of the policy; without those that are 0."""
    broken = [t.stop is StopReason.ENVIRONMENT_ERROR for t in trajectories]
    unsearched = [
        any(turn.error.startswith(SEARCH_FAILED) for turn in t.turns) for t in trajectories
    ]
    shares = {ENVIRONMENT_ERROR_SHARE: fmean(broken), FAILED_SEARCH_SHARE: fmean(unsearched)}
    return {name: share for name, share in shares.items() if share}


def _actions(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return turns per rollout by kind of action, and the share of calls that went wrong."""
    counts = Counter[str]()
    failed = Counter[str]()
    for turn in (turn for t in trajectories for turn in t.turns if turn.action):
        kind = _NOT_IN_A_NAME.sub("_", turn.action)
        counts[kind] += 1
        failed[kind] += bool(turn.error) and turn.action not in _NO_CALLS
    return {
        **{f"actions/{kind}": counts[kind] / len(trajectories) for kind in sorted(counts)},
        **{f"{FAILED_CALLS}{k}": n / counts[k] for k, n in sorted(failed.items()) if n},
    }


def _reward_parts(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the mean of each reward function before weighting, and of the metrics they logged."""
    values_by_name: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.parts.items():
            values_by_name.setdefault(f"reward/{name}", []).append(value)
        # Every rollout carries the metrics of its call, so calls are weighted by their rollouts.
        for name, value in trajectory.logged.items():
            values_by_name.setdefault(f"reward_metric/{name}", []).append(value)
    return {name: fmean(values) for name, values in values_by_name.items()}


def _hint_metrics(trajectories: Sequence[Trajectory], group_size: int) -> dict[str, float]:
    """Return the hint metrics of a batch; empty without hints."""
    hinted = sum(map(is_hinted, trajectories))
    if not hinted:
        return {}
    without_gradient: dict[str, list[bool]] = {}
    flat = set(without_variance([t.reward for t in trajectories], group_size))
    for index, first in enumerate(range(0, len(trajectories), group_size)):
        group = trajectories[first : first + group_size]
        kind = "hinted" if any(map(is_hinted, group)) else "plain"
        without_gradient.setdefault(kind, []).append(index in flat)
    shares = {f"zero_advantage_share_{k}": sum(v) / len(v) for k, v in without_gradient.items()}
    return {"hinted_share": hinted / len(trajectories), **shares}


def without_variance(rewards: Sequence[float], group_size: int) -> list[int]:
    """Return the indices of groups whose rewards are all equal in float32, as engines hold them.

    Args:
        rewards: (B · G,), group after group.

    >>> without_variance([1, 1, 0, 1, 0, 0], 2)
    [0, 2]
    """
    grouped = np.asarray(rewards, dtype=np.float32).reshape(-1, group_size)
    return np.flatnonzero((grouped == grouped[:, :1]).all(axis=1)).tolist()


def group_advantages(rewards: Sequence[float], group_size: int) -> NDArray[np.float64]:
    """Normalise rewards within each group, INSPO Eq. 3, to (B,); exactly 0 in a group of equal rewards."""
    grouped = np.asarray(rewards, dtype=np.float32).reshape(-1, group_size)
    centred = grouped - grouped.mean(1, keepdims=True)
    advantages = centred / (grouped.std(1, ddof=1, keepdims=True) + np.float32(1e-4))
    advantages[without_variance(rewards, group_size)] = 0.0
    return advantages.astype(np.float64).ravel()
