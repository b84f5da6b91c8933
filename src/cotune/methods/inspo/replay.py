"""The replay buffer of rollouts to reflect on and to verify with (INSPO, section 3.2)."""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields

from cotune.methods.instruction_rules import shorten_middle
from cotune.protocols import State
from cotune.types import StopReason, Task, Trajectory


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
        failure_below: a reward below it makes a rollout a failure.
        text_chars: characters kept of a failure's response.
    """

    def __init__(
        self, capacity: int = 4096, failure_below: float = 0.5, text_chars: int = 6000
    ) -> None:
        self._failure_below, self._text_chars = failure_below, text_chars
        self._experiences: deque[Experience] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._experiences)

    def add(self, trajectories: Sequence[Trajectory], step: int) -> None:
        """Store the rollouts of one step."""
        for t in trajectories:
            failed = t.reward < self._failure_below
            text = shorten_middle(t.full_text, self._text_chars) if failed else ""
            identity, feedback = t.assignment.instruction_id, t.feedback if failed else ""
            self._experiences.append(
                Experience(identity, t.task, text, t.reward, step, t.stop, feedback)
            )

    def failures(self, k: int, rng: random.Random) -> list[Experience]:
        """Return at most k failures, drawn from the latest step first, then from earlier ones.

        At most one failure per question, so that one group does not crowd out other mistakes.
        Rollouts that failed because of the environment are left out.
        """
        by_step: dict[int, list[Experience]] = {}
        for e in self._experiences:
            if e.reward < self._failure_below and e.stop is not StopReason.ENVIRONMENT_ERROR:
                by_step.setdefault(e.step, []).append(e)
        chosen: dict[str, Experience] = {}
        for step in sorted(by_step, reverse=True):
            for e in rng.sample(by_step[step], len(by_step[step])):
                if len(chosen) == k:
                    return list(chosen.values())
                chosen.setdefault(e.task.id, e)
        return list(chosen.values())

    def tasks(self) -> list[Task]:
        """Return every stored question once, in order of first appearance."""
        return list({e.task.id: e.task for e in self._experiences}.values())

    def recent_tasks(self, k: int, rng: random.Random) -> list[Task]:
        """Draw k different stored questions uniformly; all of them if there are fewer."""
        tasks = self.tasks()
        return rng.sample(tasks, min(k, len(tasks)))

    def state_dict(self) -> State:
        # Without columns, which may hold any object; the coordinator restores them.
        return {
            "tasks": [_fields(task) for task in self.tasks()],
            "experiences": [
                [e.instruction_id, e.task.id, e.text, e.reward, e.step, e.stop.value, e.feedback]
                for e in self._experiences
            ],
        }

    def load_state_dict(self, state: State) -> None:
        tasks = {
            t["id"]: Task(
                t["id"],
                t["question"],
                tuple(t["answers"]),
                t["stratum"],
                t["solution"],
                tuple((role, content) for role, content in t.get("context", ())),
            )
            for t in state["tasks"]
        }
        self._experiences.clear()
        self._experiences.extend(
            Experience(identity, tasks[task_id], text, reward, step, StopReason(stop), *feedback)
            for identity, task_id, text, reward, step, stop, *feedback in state["experiences"]
        )


def _fields(task: Task) -> dict[str, object]:
    return {f.name: getattr(task, f.name) for f in fields(task) if f.name != "columns"}
