"""The replay buffer of rollouts to reflect on and to verify with (INSPO, section 3.2)."""

import random
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from cotune.methods.scores import SOLVED_AT
from cotune.protocols import State
from cotune.types import StopReason, Task, Trajectory
from cotune.utils.text import shorten_middle


@dataclass(frozen=True, slots=True)
class Experience:
    """One stored rollout: the tuple (I, q, trajectory, r) of the paper.

    Attributes:
        text: the response with its observations, shortened in the middle; kept for failures
            only, since no others are shown to a proposer.
        step: the rollout batch it comes from.
        feedback: what reward functions said about it; kept for failures only.
    """

    instruction_id: str
    task: Task
    text: str
    reward: float
    step: int
    stop: StopReason
    feedback: str = ""


class ReplayBuffer:
    """Keep the last `capacity` rollouts, first in first out.

    Args:
        capacity: size in rollouts.
        text_chars: characters kept of a failure's response.
    """

    def __init__(self, capacity: int = 4096, text_chars: int = 6000) -> None:
        self._text_chars = text_chars
        self._experiences: deque[Experience] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._experiences)

    def add(self, trajectories: Sequence[Trajectory], step: int) -> None:
        """Store the rollouts of one step."""
        for t in trajectories:
            failed = t.reward < SOLVED_AT
            text = shorten_middle(t.full_text, self._text_chars) if failed else ""
            identity = t.assignment.instruction_id
            feedback = t.feedback if failed else ""
            self._experiences.append(
                Experience(identity, t.task, text, t.reward, step, t.stop, feedback)
            )

    def failures(
        self,
        k: int,
        rng: random.Random,
        of: str | None = None,
        shown: Collection[str] = (),
        most_new: int | None = None,
    ) -> list[Experience]:
        """Return at most k failures: those of one instruction first, latest first.

        At most one failure per question, so that one group does not crowd out other mistakes.
        Rollouts that failed because of the environment are left out.

        Args:
            of: id of the instruction whose failures come first; None: all are equal.
            shown: ids of questions that may be shown again.
            most_new: how many other questions may be shown; None: no limit.
        """
        by_age: dict[tuple[bool, int], list[Experience]] = {}
        for e in self._experiences:
            if e.reward < SOLVED_AT and e.stop is not StopReason.ENVIRONMENT_ERROR:
                by_age.setdefault((e.instruction_id == of, e.step), []).append(e)
        new_left = k if most_new is None else most_new
        chosen: dict[str, Experience] = {}
        for age in sorted(by_age, reverse=True):
            for e in rng.sample(by_age[age], len(by_age[age])):
                new = e.task.id not in shown
                if e.task.id in chosen or (new and not new_left):
                    continue
                if len(chosen) == k:
                    return list(chosen.values())
                chosen[e.task.id] = e
                new_left -= new
        return list(chosen.values())

    def tasks(self) -> list[Task]:
        """Return every stored question once, in order of first appearance."""
        return list({e.task.id: e.task for e in self._experiences}.values())

    def recent_tasks(self, k: int, rng: random.Random, without: Collection[str] = ()) -> list[Task]:
        """Draw k different stored questions uniformly; all of them if there are fewer.

        Args:
            without: ids of questions that are not drawn.
        """
        tasks = [task for task in self.tasks() if task.id not in without]
        return rng.sample(tasks, min(k, len(tasks)))

    def state_dict(self) -> State:
        return {
            "experiences": [
                [e.instruction_id, e.task.id, e.task.question, e.text, e.reward, e.step, e.stop.value, e.feedback]
                for e in self._experiences
            ]
        }  # fmt: skip

    def load_state_dict(self, state: State, tasks: Sequence[Task]) -> None:
        """Restore the state; `tasks` are the training questions, of which it has ids alone."""
        by_id = {task.id: task for task in tasks}
        self._experiences.clear()
        for identity, task_id, question, text, reward, step, stop, feedback in state["experiences"]:
            # An environment may draw another question for a task in each step.
            task = by_id[task_id]
            if task.question != question:
                task = replace(task, question=question)
            experience = Experience(identity, task, text, reward, step, StopReason(stop), feedback)
            self._experiences.append(experience)
