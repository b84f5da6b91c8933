"""Failures that may not be the policy's fault: an environment's errors, failed searches and calls."""

from collections.abc import Mapping

ENVIRONMENT_ERROR_SHARE = "environment_error_share"
FAILED_SEARCH_SHARE = "failed_search_share"
FAILED_CALLS = "actions_failed/"
_MOST = 0.1  # of a batch
# Of a tool's calls. A policy that has not learned to call a tool also makes many wrong ones.
_NEARLY_ALL = 0.9


def outage_notice(metrics: Mapping[str, float]) -> str:
    """Return a notice if the environment fails in more than a tenth of a batch, or a tool nearly always."""
    if (share := metrics.get(FAILED_SEARCH_SHARE, 0.0)) > _MOST:
        return f"a search failed in {share:.0%} of the rollouts; check environment.retriever"
    if (share := metrics.get(ENVIRONMENT_ERROR_SHARE, 0.0)) > _MOST:
        return (
            f"{share:.0%} of the rollouts ended in an error of the environment or its tools; read the "
            "errors in trajectories/"
        )
    for name, share in metrics.items():
        tool = name.removeprefix(FAILED_CALLS)
        if tool != name and share > _NEARLY_ALL and metrics[f"actions/{tool}"] > _MOST:
            return f"{share:.0%} of the calls of {tool} failed; read the errors in trajectories/"
    return ""
