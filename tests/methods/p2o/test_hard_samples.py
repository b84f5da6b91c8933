import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.methods.p2o.p2o import HardSamples
from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory
from tests.helpers import make_trajectory


def group(
    task_id: str, rewards: Sequence[float], hint: str = "", errors: int = 0
) -> list[Trajectory]:
    """Rollouts of a question; with `errors` more that ended in an environment error."""
    trained = Prompt("i")
    assignment = Assignment(Task(task_id, "?", ("1",)), Prompt("i", hint), trained, "", 0)
    failed = replace(make_trajectory(assignment, 0.0), stop=StopReason.ENVIRONMENT_ERROR)
    return [*(make_trajectory(assignment, reward) for reward in rewards), *[failed] * errors]


def close(samples: HardSamples) -> tuple[tuple[str, ...], int, int, int, int]:
    """Close an epoch: the hard questions, and how many were seen, are newly hard, graduated, by a hint."""
    trend = samples.close_epoch()
    assert trend["hard"] == len(samples.hard)
    counts = (trend[name] for name in ("seen", "newly_hard", "graduated", "solved_by_hint"))
    return (samples.hard, *counts)  # pyright: ignore[reportReturnType]


def test_fewer_than_two_successes_of_six_is_hard():
    samples = HardSamples()
    samples.observe(group("none", [0] * 6) + group("one", [0, 0, 1, 0, 0, 0]))
    samples.observe(group("two", [0, 1, 1, 0, 0, 0]) + group("half", [0.5, 0.5, 0.4, 0, 0, 0]))
    assert samples.hard == ()  # not before the epoch is over
    assert close(samples) == (("none", "one"), 4, 2, 0, 0)
    assert samples.hard == ("none", "one")


def test_hard_questions_are_judged_on_their_hinted_rollouts():
    samples = HardSamples()
    for task_id in ("hinted", "unhinted", "still", "unmet"):
        samples.observe(group(task_id, [0, 0, 0]))
    samples.close_epoch()
    samples.observe(group("hinted", [1, 1, 0], hint="Think."))
    samples.observe(group("unhinted", [1, 1, 0], hint=" "))
    samples.observe(group("still", [1, 0, 0], hint="Think.") + group("new", [0, 0, 0]))
    assert close(samples) == (("new", "still", "unmet"), 4, 1, 2, 1)


@pytest.mark.parametrize(("visits", "hard"), [([1], True), ([1, 1], True), ([1, 3], False)])
def test_the_mean_over_groups_of_an_epoch_counts_and_starts_anew(visits: list[int], hard: bool):
    samples = HardSamples()
    for successes in visits:
        samples.observe(group("q", [1] * successes + [0] * (6 - successes)))
    assert close(samples)[0] == (("q",) if hard else ())
    samples.observe(group("q", [1, 1, 0, 0, 0, 0]))
    assert close(samples)[0] == ()


@pytest.mark.parametrize(
    ("rewards", "errors", "hard"),
    [
        ([1], 5, False),  # 1 of 1, above 2 of 6
        ([1, 0], 4, False),  # 1 of 2
        ([1, 0, 0], 3, False),  # 1 of 3 is 2 of 6
        ([1, 0, 0, 0], 2, True),
        ([0], 5, True),
        ([1, 1], 4, False),
        ([1, 0, 0, 0, 0, 0], 0, True),
    ],
)
def test_environment_errors_are_no_attempts(rewards: list[int], errors: int, hard: bool):
    samples = HardSamples(below=2)
    samples.observe(group("q", rewards, errors=errors))
    assert close(samples) == (("q",) if hard else (), 1, hard, 0, 0)


def test_a_question_without_an_attempt_keeps_its_status():
    samples = HardSamples()
    samples.observe(group("hard", [0] * 6) + group("easy", [1] * 6))
    samples.close_epoch()
    samples.observe(group("hard", [], "Think.", 6) + group("easy", [], errors=6))
    assert close(samples) == (("hard",), 0, 0, 0, 0)


@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from("abcde"), st.sampled_from([None, 0.0, 1.0]), st.booleans()),
            max_size=12,
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 3),
)
def test_state_round_trip_in_the_middle_changes_nothing(
    epochs: list[list[tuple[str, float | None, bool]]], saved: int
):
    unbroken, resumed = HardSamples(), HardSamples()
    for number, epoch in enumerate(epochs):
        for task_id, reward, hinted in epoch:
            for samples in (unbroken, resumed):
                rewards = [] if reward is None else [reward]
                samples.observe(group(task_id, rewards, "h" if hinted else "", 1 - len(rewards)))
        if number == saved:
            state = json.loads(json.dumps(resumed.state_dict()))
            resumed = HardSamples()
            resumed.load_state_dict(state)
            assert resumed.state_dict() == state
        assert unbroken.close_epoch() == resumed.close_epoch()
