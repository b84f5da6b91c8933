"""What is said about rollouts that a limit cut off."""

from dataclasses import replace

import pytest

from cotune.run.events import (
    equal_rewards_notice,
    truncation_metrics,
    truncation_notice,
)
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
    assert truncation_notice(metrics) == (
        "67% of the rollouts were truncated, most of them by limits.turn_tokens; "
        "raise limits.turn_tokens"
    )
    assert truncation_notice(truncation_metrics(ROLLOUTS[2:])) == ""


def test_the_only_turn_of_a_rollout_is_no_limit() -> None:
    once = make_trajectory(ASSIGNMENT, 0.0, "text", StopReason.TURN_LIMIT)
    twice = replace(once, turns=(Turn("a"), Turn("b")))
    assert (once.truncated_by, twice.truncated_by) == ("", "turns")


@pytest.mark.parametrize(
    ("answers", "rewards", "expected"),
    [
        (["7 apples", "7 apples", None], [0, 0, 0], (
            'all 3 rollouts of the first step have the reward 0, 1 of them without an answer; such as "7 apples" '
            '(expected "Paris"), no answer in "…text"; if any should score otherwise, check the reward functions'
        )),
        (["a", "b", "c", "d"], [-1, -1, -1, -1], 'reward -1, 0 of them without an answer; such as "a" (expected'),
        (["a\nb\x1b[31m" + "c" * 200], [0.5], f'such as "a b[31m{"c" * 73}" (expected "Paris"); if'),
        (["a", "b"], [0, 0.1], ""),
        ([], [], ""),
    ],
)  # fmt: skip
def test_a_first_batch_without_a_difference_says_what_the_answers_look_like(
    answers: list[str | None], rewards: list[float], expected: str
) -> None:
    task = replace(ASSIGNMENT.task, answers=("Paris",))
    rollouts = [
        replace(make_trajectory(replace(ASSIGNMENT, task=task), reward, "text"), answer=answer)
        for answer, reward in zip(answers, rewards, strict=True)
    ]
    notice = equal_rewards_notice(rollouts)
    assert expected in notice
    assert bool(expected) == bool(notice)
    assert '"d"' not in notice
    # Broken rollouts say nothing of the answers.
    broken = replace(ROLLOUTS[-1], reward=1.0)
    assert equal_rewards_notice([*rollouts, broken]) == notice
