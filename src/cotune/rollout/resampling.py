"""DAPO's dynamic sampling (arXiv 2503.14476, Section 3.2): a batch full of groups with a gradient.

A group whose rewards are all equal has no advantage, so no gradient. It is replaced by a group
of another question, whose rollouts count like all others.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cotune.types import Task, Trajectory

RollOut = Callable[[Sequence[Task]], list[Trajectory]]
"""Roll out a group of each task, group after group."""


@dataclass(frozen=True)
class Resampling:
    """The pool of questions for one step's replacements.

    Attributes:
        tasks: the training tasks in their fixed order; those already rolled out in the step are skipped.
        rounds: the maximum number of rounds of replacement.
        key: run seed and step; seeds the draws of each round.
        rollouts_left: rollouts that may still be made; None is unlimited.
    """

    tasks: Sequence[Task]
    rounds: int
    key: str
    rollouts_left: int | None = None

    def draw(self, count: int, tried: set[str], round: int) -> list[Task]:
        """Draw up to `count` untried tasks without replacement."""
        spare = [task for task in self.tasks if task.id not in tried]
        # Keyed by the position in the run only, so that a resumed run draws the same.
        return random.Random(f"{self.key}/{round}").sample(spare, min(count, len(spare)))


def without_variance(rewards: Sequence[float], group_size: int) -> list[int]:
    """Return the indices of groups whose rewards are all equal in float32, as engines hold them.

    Args:
        rewards: (B · G,), group after group.

    >>> without_variance([1, 1, 0, 1, 0, 0], 2)
    [0, 2]
    """
    grouped = np.asarray(rewards, dtype=np.float32).reshape(-1, group_size)
    return np.flatnonzero((grouped == grouped[:, :1]).all(axis=1)).tolist()


def resampled(
    trajectories: Sequence[Trajectory], group_size: int, roll_out: RollOut, settings: Resampling
) -> tuple[list[Trajectory], dict[str, float]]:
    """Replace groups without variance by groups of other questions.

    Each round rolls out as many other questions as there are groups to replace, and keeps those whose
    rewards differ. It stops after the last round, once every group has a gradient, when no question
    is left, and before a round that would exceed `rollouts_left`. Other groups are unchanged.

    Returns:
        the batch, of the same size, and metrics: rounds, groups replaced, and the share of groups
        without variance and the mean reward before any replacement.
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
    """Renumber a group's rollouts as the batch's group `place`."""
    return [replace(t, assignment=replace(t.assignment, group=place)) for t in group]


def _as_first_rolled_out(rewards: Sequence[float], group_size: int) -> dict[str, float]:
    """Return metrics of the batch before replacement: the final batch is a biased sample."""
    share = len(without_variance(rewards, group_size)) * group_size / len(rewards)
    return {
        "resample/zero_advantage_share_before": share,
        "resample/reward_mean_before": sum(rewards) / len(rewards),
    }
