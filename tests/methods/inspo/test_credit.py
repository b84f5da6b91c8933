import pytest

from cotune.methods.inspo.credit import QuestionMeans, pairwise_wins, uplifts
from cotune.types import Assignment, Prompt, Trajectory
from tests.helpers import make_tasks, make_trajectory

TASKS = make_tasks(3)


def rollouts(*groups: list[tuple[str, float]]) -> list[Trajectory]:
    return [
        make_trajectory(Assignment(TASKS[g], Prompt(name), Prompt(name), name, g), reward)
        for g, group in enumerate(groups)
        for name, reward in group
    ]


def test_uplift_by_hand() -> None:
    seen = rollouts(
        [("i1", 1.0), ("i1", 0.0), ("i0", 1.0), ("i0", 0.5)],  # an easy question: plain mean 0.75
        [("i2", 0.5), ("i0", 0.0)],
        [("i1", 1.0), ("i2", 0.0)],  # nothing to compare with
    )
    assert uplifts(seen, "i0") == [0.25, -0.75, 0.25, -0.25, 0.5, 0.0, None, None]


def test_pairwise_wins_by_hand() -> None:
    seen = rollouts(
        [("i1", 1.0), ("i1", 0.0), ("i2", 0.5), ("i3", 1.0)],
        [("i1", 1.0), ("i1", 0.0)],
    )
    # i1's 1.0 beats 0.5 and ties 1.0; its 0.0 loses to both; 0.5 and the other 1.0 meet three.
    assert pairwise_wins(seen) == pytest.approx(
        [0.75, 0.0, 1 / 3, (0.5 + 1 + 1) / 3, None, None], nan_ok=False
    )


def test_centred_credit_is_the_reward_less_the_questions_mean_before() -> None:
    means = QuestionMeans()
    first = rollouts([("i1", 1.0), ("i1", 0.0)], [("i1", 1.0)])
    assert means.centred(first) == pytest.approx([1 / 3, -2 / 3, 1 / 3])  # all unseen: the batch's
    copy = QuestionMeans()
    copy.load_state_dict(means.state_dict())
    for one in (means, copy):
        assert one.centred(rollouts([("i2", 1.0)], [("i2", 0.0)])) == [0.5, -1.0]
        assert one.centred(rollouts([("i2", 1.0)])) == pytest.approx([1 - 2 / 3])
    assert means.centred([]) == []
