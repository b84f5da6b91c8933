"""Rollouts that failed for no fault of the policy's: an environment's errors and failed searches."""

from collections.abc import Mapping

ENVIRONMENT_ERROR_SHARE = "environment_error_share"
FAILED_SEARCH_SHARE = "failed_search_share"
_MOST = 0.1  # of a batch


def outage_notice(metrics: Mapping[str, float]) -> str:
    """Return a notice if more than a tenth of a batch failed in one of these ways; "" otherwise."""
    if (share := metrics.get(FAILED_SEARCH_SHARE, 0.0)) > _MOST:
        return f"a search failed in {share:.0%} of the rollouts; check environment.retriever"
    if (share := metrics.get(ENVIRONMENT_ERROR_SHARE, 0.0)) > _MOST:
        return (
            f"{share:.0%} of the rollouts ended in an error of the environment or its tools; read the "
            "errors with cotune try"
        )
    return ""
