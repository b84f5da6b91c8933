"""Trajectories that come back from the agent loops, and failures."""

from dataclasses import replace

import pytest
from transfer_queue.utils.serial_utils import decode, encode

from cotune.engines.verl.processes import SessionResult, without_columns
from cotune.engines.verl.trainer import in_order
from cotune.errors import ConfigError, EngineError
from cotune.types import Assignment, Prompt, Task
from tests.helpers import make_trajectory

COLUMNS = {"when": object()}  # nothing that could be sent
ASSIGNMENTS = [
    Assignment(
        Task(f"q{n // 2}", "?", ("a",), columns=COLUMNS), Prompt("p"), Prompt("p"), f"i{n}", n // 2
    )
    for n in range(4)
]
TRAJECTORIES = [replace(make_trajectory(a, n / 4), row=n) for n, a in enumerate(ASSIGNMENTS)]
PLACES = {"b_0_0": 2, "a_1_0": 1, "b_1_0": 3, "a_0_0": 0}


def results() -> dict[str, SessionResult]:
    """Results as TransferQueue brings them."""
    stripped = [replace(t, assignment=without_columns(t.assignment)) for t in TRAJECTORIES]
    return decode(encode({key: SessionResult(stripped[place]) for key, place in PLACES.items()}))


def test_rollouts_are_in_the_order_of_their_assignments() -> None:
    rollouts = in_order(results(), PLACES, ASSIGNMENTS)
    assert rollouts == TRAJECTORIES
    assert all(rollout.task.columns == COLUMNS for rollout in rollouts)


def test_a_missing_rollout_is_an_error() -> None:
    some = results()
    del some["b_0_0"]
    with pytest.raises(EngineError, match="1 of 4 rollouts did not come back"):
        in_order(some, PLACES, ASSIGNMENTS)


def test_a_failure_is_raised_as_it_was_before_what_is_missing() -> None:
    failed = decode(encode({"a_1_0": SessionResult(ConfigError("judge: no key"))}))
    with pytest.raises(ConfigError, match=r"^judge: no key$"):
        in_order(failed, PLACES, ASSIGNMENTS)
