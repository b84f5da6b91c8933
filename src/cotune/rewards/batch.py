"""What reward functions are given: real prompts, the policy's own tokens, the data's columns."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, cast

from cotune.protocols import Environment
from cotune.types import Task, Trajectory

GIVEN = (
    "prompts",
    "completions",
    "completion_ids",
    "ground_truths",
    "trainer_state",
    "log_extra",
    "log_metric",
)
"""What a function is given besides the columns of the data, by keyword."""


class Batch:
    """What a call's functions are given, built once."""

    def __init__(
        self, trajectories: Sequence[Trajectory], environment: Environment, state: Any
    ) -> None:
        self.trajectories, self._environment, self._state = trajectories, environment, state
        self.ids = [t.task.id for t in trajectories]
        columns = dict.fromkeys(key for t in trajectories for key in t.task.columns)
        self.columns = [*columns, *of_environment(environment, ())]
        self.logged: defaultdict[str, list[float]] = defaultdict(list)
        self._rows: dict[bool | None, dict[str, list[Any]]] = {}

    def arguments(self, messages: bool | None) -> dict[str, Any]:
        """By keyword: lists of one entry a rollout, and what belongs to the batch."""
        if messages not in self._rows:
            self._rows[messages] = arguments(self.trajectories, self._environment, messages)
        shared = {
            "trainer_state": self._state,
            "log_extra": _drop,
            "log_metric": self._log,
        }
        return {**self._rows[messages], **shared}

    def one(self, index: int) -> "Batch":
        return Batch(self.trajectories[index : index + 1], self._environment, self._state)

    def _log(self, name: str, value: float) -> None:
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"log_metric({name!r}, {value}): expected a finite number")
        self.logged[name].append(number)


def arguments(
    trajectories: Sequence[Trajectory], environment: Environment, messages: bool | None = None
) -> dict[str, list[Any]]:
    """What reward functions are called with, by keyword; a list entry a rollout.

    Args:
        messages: whether prompts and completions are chat messages; None is as the data has it.
    """
    columns = dict.fromkeys(key for t in trajectories for key in t.task.columns)
    given: dict[str, list[Any]] = {"ground_truths": [list(t.task.answers) for t in trajectories]}
    given |= {name: [t.task.columns.get(name) for t in trajectories] for name in columns}
    chats = [
        bool(environment.tools) or _is_conversational(t.task) if messages is None else messages
        for t in trajectories
    ]
    prompts = [environment.messages(t.task, t.assignment.trained) for t in trajectories]
    given["prompts"] = [
        p if chat else "\n\n".join(m["content"] for m in p)
        for p, chat in zip(prompts, chats, strict=True)
    ]
    given["completions"] = [
        [{"role": "assistant", "content": turn.text} for turn in t.turns] if chat else t.own_text
        for t, chat in zip(trajectories, chats, strict=True)
    ]
    given["completion_ids"] = [
        [i for i, own in zip(t.completion_ids, t.mask, strict=True) if own] for t in trajectories
    ]
    return given | of_environment(environment, trajectories)


def of_environment(
    environment: Environment, trajectories: Sequence[Trajectory]
) -> dict[str, list[Any]]:
    """What an environment gives reward functions besides: `environments`, as TRL does."""
    give = getattr(environment, "reward_arguments", None)
    return {} if give is None else give(trajectories)


def _is_conversational(task: Task) -> bool:
    """Whether the data has a task's question as chat messages."""
    return any(
        isinstance(value, list)
        and len(cast("list[Any]", value)) == len(task.context) + 1
        and isinstance(value[-1], Mapping)
        and cast("Mapping[str, Any]", value[-1]).get("role") == "user"
        for value in task.columns.values()
    )


def _drop(column: str, values: Sequence[Any]) -> None:
    """TRL's `log_extra`, whose table of completions is our folder of trajectories."""
