"""The replay buffer of rollouts to reflect on and to verify with (INSPO, section 3.2)."""

import random
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from cotune.methods.method import SOLVED_AT
from cotune.protocols import State
from cotune.types import Instruction, StopReason, Task, Trajectory
from cotune.utils.text import shorten_middle

_TEXT_CHARS = 6000  # of a failure's response


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
    """

    def __init__(self, capacity: int = 4096) -> None:
        self._experiences: deque[Experience] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._experiences)

    def add(self, trajectories: Sequence[Trajectory], step: int) -> None:
        """Store the rollouts of one step."""
        for t in trajectories:
            failed = t.reward < SOLVED_AT
            text = shorten_middle(t.full_text, _TEXT_CHARS) if failed else ""
            identity = t.assignment.instruction_id
            feedback = t.feedback if failed else ""
            self._experiences.append(
                Experience(identity, t.task, text, t.reward, step, t.stop, feedback)
            )

    def failures(
        self, count: int, rng: random.Random, parent: Instruction, spared: int = 0
    ) -> list[Experience]:
        """Draw at most `count` failures to show: those under the parent first, latest first.

        At most one failure per question, so that one group does not crowd out other mistakes.
        Rollouts that failed because of the environment are left out.

        Args:
            spared: questions that the parent's lineage was not shown and that stay so, to verify on; at most
                half of the buffer's. If that leaves no failure to show, only one is spared. 0: no limit.
        """
        if not spared:
            return self._draw_failures(count, rng, parent, count)
        questions = self.tasks()
        unseen = sum(task.id not in parent.shown for task in questions)
        for unshown in (min(spared, (len(questions) + 1) // 2), 1):
            most_new = max(0, unseen - unshown)
            if failures := self._draw_failures(count, rng, parent, most_new):
                return failures
        return []

    def _draw_failures(
        self, count: int, rng: random.Random, parent: Instruction, most_new: int
    ) -> list[Experience]:
        """Draw failures of which at most `most_new` questions are new to the parent's lineage."""
        by_age: dict[tuple[bool, int], list[Experience]] = {}
        for e in self._experiences:
            if e.reward < SOLVED_AT and e.stop is not StopReason.ENVIRONMENT_ERROR:
                by_age.setdefault((e.instruction_id == parent.id, e.step), []).append(e)
        chosen: dict[str, Experience] = {}
        for age in sorted(by_age, reverse=True):
            for e in rng.sample(by_age[age], len(by_age[age])):
                new = e.task.id not in parent.shown
                if e.task.id in chosen or (new and not most_new):
                    continue
                if len(chosen) == count:
                    return list(chosen.values())
                chosen[e.task.id] = e
                most_new -= new
        return list(chosen.values())

    def tasks(self) -> list[Task]:
        """Return every stored question once, in order of first appearance."""
        return list({e.task.id: e.task for e in self._experiences}.values())

    def recent_tasks(self, k: int, rng: random.Random, without: Collection[str] = ()) -> list[Task]:
        """Draw k different stored questions uniformly, `without` those ids; all of them if there are fewer."""
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
        """Restore the state, which has only the ids of the training questions, `tasks`."""
        by_id = {task.id: task for task in tasks}
        for identity, task_id, question, text, reward, step, stop, feedback in state["experiences"]:
            # An environment may draw another question for a task in each step.
            task = by_id[task_id]
            if task.question != question:
                task = replace(task, question=question)
            experience = Experience(identity, task, text, reward, step, StopReason(stop), feedback)
            self._experiences.append(experience)
