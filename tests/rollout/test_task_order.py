"""The order in which a run visits its tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.errors import ConfigError
from cotune.rollout.task_order import TaskOrder
from tests.helpers import make_tasks


@given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 5))
def test_every_epoch_is_a_permutation_whatever_the_batch(
    count: int, questions: int, seed: int
) -> None:
    tasks = make_tasks(count)
    order = TaskOrder(tasks, questions, seed)
    visited = [task.id for step in range(1, 40) for task in order.step(step)]
    assert visited == [order.at(i) for i in range(39 * questions)]
    for first in range(0, len(visited) - count + 1, count):
        assert sorted(visited[first : first + count]) == sorted(t.id for t in tasks)
    for step in range(1, 40):
        assert order.epoch(step) == (step - 1) * questions // count


def test_orders_of_epochs() -> None:
    # They depend on seed and epoch alone.
    tasks = make_tasks(20)
    late = [TaskOrder(tasks, 4, 0).at(i) for i in range(40, 60)]
    order = TaskOrder(tasks, 4, 0)
    epochs = [[order.at(e * 20 + i) for i in range(20)] for e in range(3)]
    assert late == epochs[2]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert epochs[0] != [TaskOrder(tasks, 4, 1).at(i) for i in range(20)]
    # The data's own order comes back in every epoch, and is another run.
    tasks = make_tasks(5)
    order = TaskOrder(tasks, 2, 0, shuffle=False)
    ids = [task.id for task in tasks]
    assert [task.id for step in range(1, 6) for task in order.step(step)] == ids * 2
    shuffled = TaskOrder(tasks, 2, 0)
    assert order.fingerprint == shuffled.fingerprint
    assert order.identity != shuffled.identity


def test_a_split_that_cannot_be_trained_on_is_refused() -> None:
    with pytest.raises(ConfigError, match="train split is empty"):
        TaskOrder([], 1, 0)
