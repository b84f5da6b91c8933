"""Which rollouts count as cut off."""

from dataclasses import replace

import pytest

from cotune.engines.trl.trl_joint import was_cut
from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory, Turn
from tests.helpers import make_trajectory

ASSIGNMENT = Assignment(Task("q", "?", ("a",)), Prompt("i"), Prompt("i"), "i0", 0)


def rollout(text: str, mask: tuple[int, ...], stop: StopReason) -> Trajectory:
    made = make_trajectory(ASSIGNMENT, 0.0, text, stop)
    return replace(made, mask=mask, completion_ids=mask, logprobs=mask, turns=(Turn(text),))


@pytest.mark.parametrize(
    ("text", "mask", "stop", "cut"),
    [
        ("an answer", (1, 1, 1), StopReason.ANSWERED, False),  # its own EOS
        ("ends here.", (1, 1, 0), StopReason.ANSWERED, False),  # a stop string
        ("ends here.", (1, 1, 0), StopReason.TURN_LIMIT, False),
        ("goes on and", (1, 1, 0), StopReason.TURN_LIMIT, True),
        ("goes on and", (1, 1, 0), StopReason.ANSWERED, True),
        ("asked.", (1, 0, 0), StopReason.TURN_LIMIT, False),  # an observation came last
        ("asked.", (1, 0, 0), StopReason.TOKEN_LIMIT, True),
        ("ends here.", (1, 1, 0), StopReason.CONTEXT_LIMIT, True),
        ("", (0,), StopReason.ENVIRONMENT_ERROR, False),
    ],
)
def test_cut_off_is_what_a_limit_ended(
    text: str, mask: tuple[int, ...], stop: StopReason, cut: bool
) -> None:
    assert was_cut(rollout(text, mask, stop), (".",)) is cut


def test_without_stop_strings_an_eos_alone_ends_a_turn() -> None:
    assert was_cut(rollout("ends here.", (1, 1, 0), StopReason.TURN_LIMIT), ())
    assert not was_cut(rollout("ends here.", (1, 1, 1), StopReason.TURN_LIMIT), ())
