"""Truncated rollouts: their share of a batch, by the limit that cut them off, and what to say."""

from collections import Counter
from collections.abc import Mapping, Sequence

from cotune.types import Trajectory

SHARE = "truncated_share"
_BY_LIMIT = "truncated/"


def truncation_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the share of truncated rollouts, and that of each limit that cut any off."""
    limits = Counter(filter(None, (t.truncated_by for t in trajectories)))
    count = len(trajectories)
    shares = {_BY_LIMIT + limit: limits[limit] / count for limit in sorted(limits)}
    return {SHARE: limits.total() / count, **shares}


def truncation_summary(trajectories: Sequence[Trajectory]) -> str:
    """Return how many rollouts hit which limits, in one line, and the fix if most did; "" if none did."""
    limits = Counter(filter(None, (t.truncated_by for t in trajectories)))
    if not limits:
        return ""
    hit = ", ".join(f"{limit_name(limit)} ({n})" for limit, n in limits.most_common())
    hit = limit_name(next(iter(limits))) if len(limits) == 1 else hit
    fix = truncation_fix(truncation_metrics(trajectories))
    summary = f"truncated: {limits.total()} of {len(trajectories)} rollouts hit {hit}"
    return f"{summary}; {fix}" if fix else summary


def truncation_fix(metrics: Mapping[str, float]) -> str:
    """Return what to change if more than half of a batch was truncated; "" otherwise."""
    limit = _most_hit(metrics)
    if limit == "context":
        return "lower limits.prompt_tokens or choose a policy with a longer context"
    return f"raise limits.{limit}" if limit else ""


def truncation_notice(metrics: Mapping[str, float]) -> str:
    """Return a notice if more than half of a batch was truncated; "" otherwise."""
    if not (limit := _most_hit(metrics)):
        return ""
    return (
        f"{metrics[SHARE]:.0%} of the rollouts were truncated, most of them by {limit_name(limit)}; "
        f"{truncation_fix(metrics)}"
    )


def _most_hit(metrics: Mapping[str, float]) -> str:
    """Return the limit that cut most rollouts off if more than half of all were; "" otherwise."""
    by_limit = {name: value for name, value in metrics.items() if name.startswith(_BY_LIMIT)}
    if metrics.get(SHARE, 0.0) <= 0.5 or not by_limit:
        return ""
    return max(by_limit, key=by_limit.__getitem__).removeprefix(_BY_LIMIT)


def limit_name(limit: str) -> str:
    """Return the name of a limit: its field in a run file, or the policy's context."""
    return "the policy's context" if limit == "context" else f"limits.{limit}"
