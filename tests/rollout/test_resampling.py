"""Groups without variance and what takes their places, by hand."""

from collections.abc import Sequence

import pytest

from cotune.rollout.resampling import Resampling, resampled, without_variance
from cotune.types import Assignment, Prompt, Task, Trajectory
from tests.helpers import make_tasks, make_trajectory

TASKS = make_tasks(8)
PROMPT = Prompt("say ")


def test_groups_whose_rewards_are_all_equal() -> None:
    assert without_variance([1, 1, 1, 0, 1, 0, 0, 0, 0, 0.5, 0.5, 0.25], 3) == [0, 2]
    assert without_variance([1, 1, 1, 0, 1, 0, 0, 0, 0, 0.5, 0.5, 0.25], 2) == [0, 3]
    assert without_variance([0.1, 0.2], 2) == []
    # The engines' rewards are float32, in which these are equal.
    assert without_variance([0.1 + 0.2, 0.3, 0.3, 0.300001], 2) == [0]
    assert without_variance([0.1, 0.2], 1) == [0, 1]  # one rollout has nobody to differ from


class World:
    """Rewards by task: the same for a whole group, or 0 and 1 in turns; notes what is asked."""

    def __init__(self, flat: dict[str, float]) -> None:
        self.flat = flat
        self.asked: list[list[str]] = []

    def __call__(self, tasks: Sequence[Task]) -> list[Trajectory]:
        self.asked.append([task.id for task in tasks])
        return self.groups(tasks)

    def groups(self, tasks: Sequence[Task]) -> list[Trajectory]:
        return [
            make_trajectory(
                Assignment(task, PROMPT, PROMPT, "i0", group),
                self.flat.get(task.id, float(i % 2)),
                f"{task.id} {i}",
            )
            for group, task in enumerate(tasks)
            for i in range(2)
        ]


def settings(rounds: int, left: int | None = None, key: str = "0/3") -> Resampling:
    return Resampling(TASKS, rounds, key, left)


def seen(batch: Sequence[Trajectory]) -> list[tuple[str, int]]:
    return [(t.own_text, t.assignment.group) for t in batch]


def test_a_flat_group_gives_its_place_to_a_whole_group_of_another_question() -> None:
    world = World({"q1": 1.0})
    batch, metrics = resampled(world.groups(TASKS[:3]), 2, world, settings(3))
    ((other,),) = world.asked  # one round was enough
    assert other in {t.id for t in TASKS[3:]}
    assert seen(batch) == [
        ("q0 0", 0), ("q0 1", 0), (f"{other} 0", 1), (f"{other} 1", 1), ("q2 0", 2), ("q2 1", 2)
    ]  # fmt: skip
    assert metrics == {
        "resample/rounds": 1.0,
        "resample/groups_replaced": 1.0,
        "resample/zero_advantage_share_before": pytest.approx(1 / 3),
        "resample/reward_mean_before": pytest.approx((1 + 2 + 1) / 6),
    }


def test_a_full_batch_is_left_alone() -> None:
    world = World({})
    given = world.groups(TASKS[:3])
    batch, metrics = resampled(given, 2, world, settings(3))
    assert (batch, world.asked) == (given, [])
    assert metrics["resample/rounds"] == metrics["resample/groups_replaced"] == 0.0


def test_rounds_go_on_for_what_is_still_flat_and_never_ask_a_question_twice() -> None:
    only = "q6"
    world = World({t.id: 0.0 for t in TASKS if t.id != only})
    given = world.groups(TASKS[:2])
    batch, metrics = resampled(given, 2, world, settings(9))
    asked = [id for round in world.asked for id in round]
    assert sorted(asked) == [t.id for t in TASKS[2:]]  # until no question is left
    assert len(world.asked[0]) == 2
    assert metrics["resample/rounds"] == len(world.asked)
    assert metrics["resample/groups_replaced"] == 1.0
    assert seen(batch) == [("q6 0", 0), ("q6 1", 0), ("q1 0", 1), ("q1 1", 1)]
    # Once a group is found, later rounds ask for the other one alone.
    found = next(i for i, round in enumerate(world.asked) if only in round)
    assert [len(round) for round in world.asked[found + 1 :]] == [1] * (
        len(world.asked) - found - 1
    )


@pytest.mark.parametrize(("rounds", "asked"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3)])
def test_no_more_rounds_than_allowed_and_what_remains_stays_as_it_is(
    rounds: int, asked: int
) -> None:
    world = World({t.id: 1.0 for t in TASKS})
    given = world.groups(TASKS[:2])
    batch, metrics = resampled(given, 2, world, settings(rounds))
    assert batch == given
    assert len(world.asked) == asked == metrics["resample/rounds"]
    assert metrics["resample/groups_replaced"] == 0.0


@pytest.mark.parametrize(("left", "asked"), [(3, 0), (4, 1), (7, 1), (8, 2), (None, 3)])
def test_no_round_begins_that_would_exceed_the_budget(left: int | None, asked: int) -> None:
    world = World({t.id: 1.0 for t in TASKS})
    resampled(world.groups(TASKS[:2]), 2, world, settings(9, left))
    assert len(world.asked) == asked  # of 2 × 2 rollouts each


def test_draws_are_keyed_by_seed_step_and_round_and_by_nothing_else() -> None:
    tasks = make_tasks(100)

    def draw(key: str, round: int, tried: set[str] | None = None) -> list[str]:
        drawn = Resampling(tasks, 9, key).draw(5, tried or set(), round)
        return [task.id for task in drawn]

    first = draw("0/3", 1)
    assert draw("0/3", 1) == first
    assert len(set(first)) == 5
    assert first not in (draw("0/3", 2), draw("0/4", 1), draw("1/3", 1))
    assert not set(first) & set(draw("0/3", 1, tried=set(first)))
