"""The numbers of a rollout batch."""

import re
from collections import Counter
from collections.abc import Sequence

from cotune.methods.p2o.distillation import is_hinted
from cotune.rollout.resampling import without_variance
from cotune.types import SEARCH_FAILED, Trajectory

_NOT_IN_A_NAME = re.compile(r"[^\w.-]+")  # of a metric: an environment's names may be any text


def trajectory_metrics(trajectories: Sequence[Trajectory], group_size: int) -> dict[str, float]:
    """Means over a batch; `zero_advantage_share` is the share of groups without any gradient.

    Where rollouts were sampled under a hint, their share, and that share of groups among those with
    a hinted rollout and among the others.

    `actions/<kind>` is how many turns of a rollout the environment took for that kind of action:
    of a tool, its calls. A kind that no turn was taken for is not there, nor are `failed_searches`
    where there were none.
    """
    count = len(trajectories)
    rewards = [t.reward for t in trajectories]
    flat = without_variance(rewards, group_size)
    return {
        **_hint_metrics(trajectories, group_size),
        "reward_mean": sum(rewards) / count,
        "zero_advantage_share": len(flat) * group_size / count,
        "turns_mean": sum(len(t.turns) for t in trajectories) / count,
        "prompt_tokens_mean": sum(len(t.sampled_prompt_ids) for t in trajectories) / count,
        "response_tokens_mean": sum(t.generated_tokens for t in trajectories) / count,
        "generated_tokens": float(sum(t.generated_tokens for t in trajectories)),
        "completion_tokens_mean": sum(len(t.completion_ids) for t in trajectories) / count,
        "answered_share": sum(t.answer is not None for t in trajectories) / count,
        "turn_error_share": sum(any(turn.error for turn in t.turns) for t in trajectories) / count,
        **_failed_searches(trajectories),
        **_actions(trajectories),
        **_reward_parts(trajectories),
    }


def _failed_searches(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Searches of a batch that the retriever could not carry out; empty where all were."""
    turns = [turn for t in trajectories for turn in t.turns]
    failed = sum(turn.error.startswith(SEARCH_FAILED) for turn in turns)
    return {"failed_searches": float(failed)} if failed else {}


def _actions(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Turns a rollout by kind of action; turns that no environment named are left out."""
    kinds = Counter(turn.action for t in trajectories for turn in t.turns if turn.action)
    counts: Counter[str] = Counter()
    for kind, count in kinds.items():
        counts[_NOT_IN_A_NAME.sub("_", kind)] += count
    return {f"actions/{kind}": counts[kind] / len(trajectories) for kind in sorted(counts)}


def _reward_parts(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The mean of each reward function, before weights, and of what they logged.

    Empty where the environment scores.
    """
    found: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.parts.items():
            found.setdefault(f"reward/{name}", []).append(value)
        # Every rollout of a call has what was logged in it, so calls count by their rollouts.
        for name, value in trajectory.logged.items():
            found.setdefault(f"reward_metric/{name}", []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def _hint_metrics(trajectories: Sequence[Trajectory], group_size: int) -> dict[str, float]:
    """`trajectory_metrics` with and without hints; empty where there is no hint."""
    hinted = sum(map(is_hinted, trajectories))
    if not hinted:
        return {}
    without_gradient: dict[str, list[bool]] = {}
    for first in range(0, len(trajectories), group_size):
        group = trajectories[first : first + group_size]
        kind = "hinted" if any(map(is_hinted, group)) else "plain"
        equal = len({t.reward for t in group}) == 1
        without_gradient.setdefault(kind, []).append(equal)
    shares = {f"zero_advantage_share_{k}": sum(v) / len(v) for k, v in without_gradient.items()}
    return {"hinted_share": hinted / len(trajectories), **shares}
