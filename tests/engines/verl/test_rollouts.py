"""Trajectories that come back from the agent loops, and failures."""

from dataclasses import replace

import pytest

from cotune import protocols as contracts
from cotune.engines.verl.row_format import failure_text, result_text
from cotune.errors import ConfigError, CotuneError, EngineError
from cotune.types import Assignment, Prompt, Task, Trajectory
from tests.helpers import make_trajectory

ASSIGNMENTS = [
    Assignment(Task(f"q{n // 2}", "?", ("a",)), Prompt("p"), Prompt("p"), f"i{n}", n // 2)
    for n in range(4)
]
TRAJECTORIES = [replace(make_trajectory(a, n / 4), row=n) for n, a in enumerate(ASSIGNMENTS)]
PLACES = {"b_0_0": 2, "a_1_0": 1, "b_1_0": 3, "a_0_0": 0}


def ordered(results: dict[str, str]) -> list[Trajectory]:
    from cotune.engines.verl.rollouts import in_order

    return in_order(results, PLACES, ASSIGNMENTS)


def texts() -> dict[str, str]:
    return {key: result_text(TRAJECTORIES[place]) for key, place in PLACES.items()}


def test_rollouts_are_in_the_order_of_their_assignments() -> None:
    assert ordered(texts()) == TRAJECTORIES


def test_a_missing_rollout_is_an_error() -> None:
    found = texts()
    del found["b_0_0"]
    with pytest.raises(EngineError, match="1 of 4 rollouts did not come back"):
        ordered(found)
    with pytest.raises(EngineError, match="4 of 4"):
        ordered({})


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in vars(contracts).values()
        if isinstance(kind, type) and issubclass(kind, CotuneError)
    ],
)
def test_an_error_of_ours_is_raised_as_it_was(kind: type[CotuneError]) -> None:
    with pytest.raises(CotuneError) as caught:
        ordered(texts() | {"a_1_0": failure_text(kind("judge: no key"))})
    assert type(caught.value) is kind
    assert str(caught.value) == "judge: no key"


@pytest.mark.parametrize(
    "error",
    [
        KeyError("answer"),
        ValueError("no number"),
        # Names of what contracts has besides errors of ours.
        type("Task", (Exception,), {})("odd"),
        type("ConfigErr", (ConfigError,), {})("sub-class"),
    ],
)
def test_any_other_error_says_what_it_was(error: Exception) -> None:
    with pytest.raises(EngineError) as caught:
        ordered(texts() | {"a_1_0": failure_text(error)})
    assert str(caught.value) == f"a rollout failed: {type(error).__name__}: {error}"


def test_a_failure_comes_before_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="no key"):
        ordered({"a_1_0": failure_text(ConfigError("no key"))})
