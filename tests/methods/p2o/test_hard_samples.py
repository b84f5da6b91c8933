import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.methods.p2o.hard_samples import EpochTrend, HardSamples
from cotune.types import Assignment, Prompt, Task, Trajectory
from tests.helpers import make_trajectory


def group(task_id: str, rewards: Sequence[float], hint: str = "") -> list[Trajectory]:
    trained = Prompt("i")
    assignment = Assignment(Task(task_id, "?", ("1",)), Prompt("i", hint), trained, "", 0)
    return [make_trajectory(assignment, reward) for reward in rewards]


def test_fewer_than_two_successes_of_six_is_hard():
    samples = HardSamples()
    samples.observe(group("none", [0] * 6) + group("one", [0, 0, 1, 0, 0, 0]))
    samples.observe(group("two", [0, 1, 1, 0, 0, 0]) + group("half", [0.5, 0.5, 0.4, 0, 0, 0]))
    assert samples.hard == ()  # not before the epoch is over
    assert samples.close_epoch() == EpochTrend(("none", "one"), 4, 2, 0, 0)
    assert samples.hard == ("none", "one")


def test_hard_questions_are_judged_on_their_hinted_rollouts():
    samples = HardSamples()
    for task_id in ("hinted", "unhinted", "still", "unmet"):
        samples.observe(group(task_id, [0, 0, 0]))
    samples.close_epoch()
    samples.observe(group("hinted", [1, 1, 0], hint="Think."))
    samples.observe(group("unhinted", [1, 1, 0], hint=" "))
    samples.observe(group("still", [1, 0, 0], hint="Think.") + group("new", [0, 0, 0]))
    trend = samples.close_epoch()
    assert trend == EpochTrend(("new", "still", "unmet"), 4, 1, 2, 1)


def test_count_runs_over_all_steps_of_an_epoch_and_starts_anew():
    samples = HardSamples()
    samples.observe(group("q", [1, 0, 0]))
    samples.observe(group("q", [0, 0, 1]))
    assert samples.close_epoch().hard == ()
    samples.observe(group("q", [1, 0, 0]))
    assert samples.close_epoch().hard == ("q",)


def test_threshold_of_one_is_only_what_never_succeeded():
    samples = HardSamples(below=1)
    samples.observe(group("never", [0] * 6) + group("once", [1] + [0] * 5))
    assert samples.close_epoch().hard == ("never",)
    with pytest.raises(ValueError, match="below is 0; expected 1"):
        HardSamples(below=0)


@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from("abcde"), st.sampled_from([0.0, 1.0]), st.booleans()),
            max_size=12,
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 3),
)
def test_state_round_trip_in_the_middle_changes_nothing(
    epochs: list[list[tuple[str, float, bool]]], saved: int
):
    unbroken, resumed = HardSamples(), HardSamples()
    for number, epoch in enumerate(epochs):
        for task_id, reward, hinted in epoch:
            for samples in (unbroken, resumed):
                samples.observe(group(task_id, [reward], "h" if hinted else ""))
        if number == saved:
            state = json.loads(json.dumps(resumed.state_dict()))
            resumed = HardSamples()
            resumed.load_state_dict(state)
            assert resumed.state_dict() == state
        assert unbroken.close_epoch() == resumed.close_epoch()
