"""DAPO's dynamic sampling (arXiv 2503.14476, Section 3.2): a batch full of groups with a gradient.

A group whose rewards are all equal has no advantage, hence no gradient. Its place is given to a
group of another question, rolled out anew, which is paid like every rollout.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cotune.types import Task, Trajectory

RollOut = Callable[[Sequence[Task]], list[Trajectory]]
"""Rolls out a group of each task, group after group."""


@dataclass(frozen=True)
class Resampling:
    """What may be drawn for the groups of one step.

    Attributes:
        tasks: the training tasks in their fixed order; those rolled out in the step are passed over.
        rounds: how often groups are rolled out anew at most.
        key: run seed and step, which the draws of each round are keyed by.
        rollouts_left: how many rollouts may still be made; None without a bound.
    """

    tasks: Sequence[Task]
    rounds: int
    key: str
    rollouts_left: int | None = None

    def draw(self, count: int, tried: set[str], round: int) -> list[Task]:
        """`count` tasks of those not tried, without replacement; fewer where there are fewer."""
        spare = [task for task in self.tasks if task.id not in tried]
        # Keyed by position in the run alone, so that a resumed run draws the same.
        return random.Random(f"{self.key}/{round}").sample(spare, min(count, len(spare)))


def without_variance(rewards: Sequence[float], group_size: int) -> list[int]:
    """Indices of the groups whose rewards are all equal.

    Args:
        rewards: (B · G,), group after group.

    >>> without_variance([1, 1, 0, 1, 0, 0], 2)
    [0, 2]
    """
    starts = range(0, len(rewards), group_size)
    groups = [rewards[start : start + group_size] for start in starts]
    return [index for index, group in enumerate(groups) if max(group) == min(group)]


def resampled(
    trajectories: Sequence[Trajectory], group_size: int, roll_out: RollOut, settings: Resampling
) -> tuple[list[Trajectory], dict[str, float]]:
    """The batch with groups of other questions in place of those without variance.

    Each round rolls out as many other questions as there are groups to replace; those of them whose
    rewards differ take the places. It ends after the last round, once every group has a gradient,
    where no question is left, and before a round that would exceed `rollouts_left`. Groups that were
    not replaced stay as they were.

    Returns:
        the batch, as long as before, and what was done: rounds, groups replaced, and share of
        groups without variance and mean reward as the batch was first rolled out.
    """
    batch, left = list(trajectories), settings.rollouts_left
    tried = {t.task.id for t in batch}
    rounds = replaced = 0
    while rounds < settings.rounds:
        places = without_variance([t.reward for t in batch], group_size)
        tasks = settings.draw(len(places), tried, rounds + 1)
        cost = len(tasks) * group_size
        if not tasks or (left is not None and cost > left):
            break
        rounds, left = rounds + 1, None if left is None else left - cost
        tried |= {task.id for task in tasks}
        groups = _with_variance(roll_out(tasks), group_size)
        for place, group in zip(places[: len(groups)], groups, strict=True):
            batch[place * group_size : (place + 1) * group_size] = _moved(group, place)
        replaced += len(groups)
    return batch, {
        "resample/rounds": float(rounds),
        "resample/groups_replaced": float(replaced),
        **_as_first_rolled_out([t.reward for t in trajectories], group_size),
    }


def _with_variance(trajectories: Sequence[Trajectory], group_size: int) -> list[list[Trajectory]]:
    flat = set(without_variance([t.reward for t in trajectories], group_size))
    count = len(trajectories) // group_size
    return [
        list(trajectories[index * group_size : (index + 1) * group_size])
        for index in range(count)
        if index not in flat
    ]


def _moved(group: Sequence[Trajectory], place: int) -> list[Trajectory]:
    """The group's rollouts, told that they are the batch's group `place`."""
    return [replace(t, assignment=replace(t.assignment, group=place)) for t in group]


def _as_first_rolled_out(rewards: Sequence[float], group_size: int) -> dict[str, float]:
    """What the policy did on the questions that were due: those that stay are no fair sample."""
    share = len(without_variance(rewards, group_size)) * group_size / len(rewards)
    return {
        "resample/zero_advantage_share_before": share,
        "resample/reward_mean_before": sum(rewards) / len(rewards),
    }
