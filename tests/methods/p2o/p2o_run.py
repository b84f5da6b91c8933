"""A P²O strategy in the loop, around scripted rewards and a scripted reflector."""

from collections.abc import Callable, Sequence
from typing import Any

from cotune.methods.method import Context
from cotune.methods.p2o.p2o import P2O, P2OOptions
from cotune.protocols import LLM
from cotune.types import Assignment, Progress, Prompt, Task
from tests.helpers import Events, make_trajectory
from tests.methods.p2o.hint_fakes import SMALL, Policy, one_keyword_each, tasks_of_two_kinds
from tests.scripted import Author

INSTRUCTION = "Solve it."
PLAIN = Prompt(INSTRUCTION)
HARD = tasks_of_two_kinds(20)
EASY = [Task(f"e{i}", f"Easy problem {i}?", (f"easy{i}",), "sum") for i in range(6)]
TASKS = [*HARD, *EASY]
GROUP = 4

Succeeds = Callable[[Assignment, int], bool]
"""Whether the k-th rollout of a group is a success."""


def never_when_hard(assignment: Assignment, k: int) -> bool:
    return assignment.task in EASY


class Run:
    """A strategy in the loop, with scripted rewards; one step is a batch of any questions.

    A stand-in for the engine: it keeps what the strategy was asked and what it said.
    """

    def __init__(self, strategy: P2O | None = None, llm: LLM | None = None, **changes: Any) -> None:
        self.strategy = strategy or p2o(**changes)
        self.llm = llm or Author(one_keyword_each)
        self.policy, self.events, self.step = Policy(), Events(), 0

    def batch(
        self, epoch: int, succeeds: Succeeds = never_when_hard, tasks: Sequence[Task] = TASKS
    ) -> list[Assignment]:
        self.step += 1
        progress = Progress(self.step, epoch, 100)
        self.evolve(progress)
        assignments = self.strategy.assign(tasks, GROUP, progress)
        assert [a.task for a in assignments] == [t for t in tasks for _ in range(GROUP)]
        assert [a.group for a in assignments] == [
            g for g in range(len(tasks)) for _ in range(GROUP)
        ]
        seen = [
            make_trajectory(a, float(succeeds(a, i % GROUP))) for i, a in enumerate(assignments)
        ]
        self.strategy.observe(seen, progress, self.events)
        return assignments

    def evolve(self, progress: Progress) -> dict[str, float]:
        return dict(self.strategy.evolve_if_due(progress, self.policy, self.llm, self.events))

    @property
    def pool(self) -> dict[str, Any]:
        return self.strategy.state_dict()["pool"]


def p2o(seed: int = 1, **changes: Any) -> P2O:
    return P2O(
        P2OOptions(**{"hints": SMALL, **changes}),
        Context(instruction=INSTRUCTION, tasks=TASKS, seed=seed),
    )


def hints(assignments: Sequence[Assignment]) -> dict[str, tuple[str, ...]]:
    """By task id: the hint of each rollout of its group."""
    found: dict[str, tuple[str, ...]] = {}
    for a in assignments:
        found[a.task.id] = (*found.get(a.task.id, ()), a.sampled.hint)
    return found


def hinted_ids(assignments: Sequence[Assignment]) -> set[str]:
    return {a.task.id for a in assignments if a.sampled.hint}
