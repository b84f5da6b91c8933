"""The credit that a rollout gives to the instruction it was sampled under: r in INSPO's Eq. 6.

raw         the reward, as in the paper
centred     the reward less the question's running mean
uplift      the reward less the mean reward of the same group's rollouts under the initial
            instruction: the question's difficulty cancels
pairwise    the share of the same group's rollouts under other instructions that it beats
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from cotune.types import Trajectory

Credit = Literal["raw", "centred", "uplift", "pairwise"]


def uplifts(trajectories: Sequence[Trajectory], initial_id: str) -> list[float | None]:
    """Return each rollout's reward less the mean of its group's rollouts under the initial instruction.

    None if the group has no such rollout: there is nothing to compare with.
    """
    plain: defaultdict[int, list[float]] = defaultdict(list)
    for t in trajectories:
        if t.assignment.instruction_id == initial_id:
            plain[t.assignment.group].append(t.reward)
    means = {group: fmean(rewards) for group, rewards in plain.items()}
    return [
        None if (mean := means.get(t.assignment.group)) is None else t.reward - mean
        for t in trajectories
    ]


def pairwise_wins(trajectories: Sequence[Trajectory]) -> list[float | None]:
    """Return the share of its group's rollouts under other instructions that each rollout beats.

    A tie is half a win. None if all of the group are under the same instruction. E-SPL rates prompts
    by such comparisons within a question, with TrueSkill in place of the mean.
    """
    by_group: defaultdict[int, list[Trajectory]] = defaultdict(list)
    for t in trajectories:
        by_group[t.assignment.group].append(t)

    def wins(t: Trajectory) -> float | None:
        mine = t.assignment.instruction_id
        others = [o for o in by_group[t.assignment.group] if o.assignment.instruction_id != mine]
        if not others:
            return None
        return fmean((t.reward > o.reward) + 0.5 * (t.reward == o.reward) for o in others)

    return [wins(t) for t in trajectories]


class QuestionMeans:
    """Running mean rewards by question, for centred credit."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}  # task id -> rollouts, mean reward

    def centred(self, trajectories: Sequence[Trajectory]) -> list[float]:
        """Return each reward less its question's mean before this step, and add the rewards.

        A question met for the first time is compared with the batch's mean.
        """
        if not trajectories:
            return []
        unseen = (0, fmean(t.reward for t in trajectories))
        found = [t.reward - self._known.get(t.task.id, unseen)[1] for t in trajectories]
        by_task: defaultdict[str, list[float]] = defaultdict(list)
        for t in trajectories:
            by_task[t.task.id].append(t.reward)
        for task_id, new in by_task.items():
            n, mean = self._known.get(task_id, (0, 0.0))
            self._known[task_id] = (n + len(new), (n * mean + sum(new)) / (n + len(new)))
        return found

    def state_dict(self) -> dict[str, list[float]]:
        return {task: list(value) for task, value in self._known.items()}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self._known = {task: (int(n), mean) for task, (n, mean) in state.items()}
