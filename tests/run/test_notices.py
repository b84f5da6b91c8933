"""What is said about rollouts that a limit cut off."""

from dataclasses import replace

import pytest

from cotune.run.notices import truncation_metrics, truncation_notice, truncation_summary
from cotune.types import Assignment, Prompt, StopReason, Turn
from tests.helpers import make_tasks, make_trajectory

STOPS = (
    [StopReason.TURN_TOKENS] * 3
    + [StopReason.CONTEXT_LIMIT]
    + [StopReason.ANSWERED, StopReason.ENVIRONMENT_ERROR]
)
ASSIGNMENT = Assignment(make_tasks(1)[0], Prompt("i"), Prompt("i"), "i0", 0)
ROLLOUTS = [make_trajectory(ASSIGNMENT, 0.0, "text", stop) for stop in STOPS]


def test_truncated_rollouts_are_counted_by_limit() -> None:
    metrics = truncation_metrics(ROLLOUTS)
    assert metrics == {
        "truncated_share": pytest.approx(4 / 6),
        "truncated/turn_tokens": pytest.approx(3 / 6),
        "truncated/context": pytest.approx(1 / 6),
    }
    assert truncation_summary(ROLLOUTS[:3] + ROLLOUTS[4:]) == (
        "truncated: 3 of 5 rollouts hit limits.turn_tokens; raise limits.turn_tokens"
    )
    assert truncation_summary(ROLLOUTS).endswith(
        "limits.turn_tokens (3), the policy's context (1); raise limits.turn_tokens"
    )
    few = "truncated: 1 of 3 rollouts hit the policy's context"
    assert truncation_summary(ROLLOUTS[3:]) == few
    assert truncation_notice(metrics) == (
        "67% of the rollouts were truncated, most of them by limits.turn_tokens; "
        "raise limits.turn_tokens"
    )
    assert truncation_notice(truncation_metrics(ROLLOUTS[2:])) == ""
    assert truncation_summary(ROLLOUTS[4:]) == ""


def test_the_only_turn_of_a_rollout_is_no_limit() -> None:
    once = make_trajectory(ASSIGNMENT, 0.0, "text", StopReason.TURN_LIMIT)
    twice = replace(once, turns=(Turn("a"), Turn("b")))
    assert (once.truncated_by, twice.truncated_by) == ("", "turns")
