"""The order of the training tasks: one permutation per epoch, or the data's."""

import hashlib
import json
import random
from collections.abc import Sequence

from cotune.errors import ConfigError
from cotune.types import Task


def fingerprint(tasks: Sequence[Task]) -> str:
    """Return the SHA-256 of ids, questions and answers in order."""
    rows = [[t.id, t.question, list(t.answers)] for t in tasks]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


class TaskOrder:
    """The training tasks in the order in which a run visits them.

    Epoch e is a permutation keyed by (seed, e), so a resumed run sees the same order.

    Args:
        questions: tasks per step.
        shuffle: False keeps the tasks' own order in every epoch.
    """

    def __init__(
        self, tasks: Sequence[Task], questions: int, seed: int, shuffle: bool = True
    ) -> None:
        if not tasks:
            raise ConfigError("environment: its train split is empty; expected at least one task")
        self.by_id = {task.id: task for task in tasks}
        if len(self.by_id) != len(tasks):
            raise ConfigError(
                f"environment: {len(tasks) - len(self.by_id)} training tasks share an id with "
                "another; ids must be different"
            )
        self._ids = list(self.by_id)
        self.questions = questions
        self._seed = seed
        self._shuffle = shuffle
        self._permutations: dict[int, list[str]] = {}
        self.fingerprint = fingerprint(tasks)

    @property
    def identity(self) -> dict[str, str]:
        """Return, by name, the values that a resumed run must share."""
        return {
            "the training tasks": self.fingerprint,
            "the order of the training tasks": "shuffled" if self._shuffle else "as in the data",
        }

    def at(self, position: int) -> str:
        """Return the task id at a position of the endless sequence, counted from 0."""
        epoch, place = divmod(position, len(self._ids))
        if not self._shuffle:
            return self._ids[place]
        if epoch not in self._permutations:
            order = list(self._ids)
            random.Random(f"{self._seed}/epoch/{epoch}").shuffle(order)
            self._permutations[epoch] = order
        return self._permutations[epoch][place]

    def step(self, step: int) -> list[Task]:
        """Return the tasks of a step, counted from 1."""
        first = (step - 1) * self.questions
        return [self.by_id[self.at(first + i)] for i in range(self.questions)]

    def epoch(self, step: int) -> int:
        """Return the passes over the tasks completed before a step."""
        return (step - 1) * self.questions // len(self._ids)
