"""Hard-sample mining: choose the next epoch's hinted questions (P²O, arXiv 2603.21877, Eq. 3)."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass

from cotune.methods.scores import SOLVED_AT
from cotune.protocols import State
from cotune.types import Trajectory


@dataclass(slots=True)
class _Count:
    """A question's rollouts in one epoch.

    Attributes:
        hinted: whether any attempt saw a hint.
        errors: rollouts that ended in an environment error, which do not count as attempts.
        visits: groups that these rollouts are of.
    """

    successes: int = 0
    hinted: bool = False
    rollouts: int = 0
    errors: int = 0
    visits: int = 0

    def is_hard(self, below: int) -> bool:
        """Return whether successes / attempts < below × visits / rollouts.

        For one visit without errors that is successes < below.
        """
        attempts = self.rollouts - self.errors
        return self.successes * self.rollouts < below * self.visits * attempts


class HardSamples:
    """Count successes by stable task id over an epoch.

    A question is hard in the next epoch if a group of its rollouts had fewer than `below` successes in this
    one. If a step spans two epochs, a question can be met twice; then the mean over its groups counts.
    Environment errors do not count as attempts and lower `below` in proportion. A question that was
    already hard is judged by its rollouts like any other; in the paper these are all hinted. A question
    without attempts in the epoch keeps its status.

    Args:
        below: successes at which a question stops being hard; the paper's τ, 2 of K = 6 rollouts.
    """

    def __init__(self, below: int = 2) -> None:
        self._below = below
        self._hard: frozenset[str] = frozenset()
        self._counts: dict[str, _Count] = {}

    @property
    def hard(self) -> tuple[str, ...]:
        """Return the ids of the questions that are hard in this epoch, sorted."""
        return tuple(sorted(self._hard))

    def observe(self, trajectories: Iterable[Trajectory]) -> None:
        """Add a batch's rollouts to this epoch's counts."""
        groups = set[tuple[str, int]]()
        for trajectory in trajectories:
            count = self._counts.setdefault(trajectory.task.id, _Count())
            count.rollouts += 1
            group = (trajectory.task.id, trajectory.assignment.group)
            count.visits += group not in groups
            groups.add(group)
            if not trajectory.judged:
                count.errors += 1
                continue
            count.successes += trajectory.reward >= SOLVED_AT
            count.hinted |= bool(trajectory.assignment.sampled.hint.strip())

    def close_epoch(self) -> dict[str, int]:
        """Set the hard questions of the next epoch from this epoch's counts, and reset the counts.

        Returns:
            how many questions are `hard` now, were `seen` in the epoch, are `newly_hard`, have `graduated`
            (hard before and not now), and of these were `solved_by_hint`: judged on rollouts under a hint,
            so that they may not yet be solved without one.
        """
        before = self._hard
        met = {i: count for i, count in self._counts.items() if count.rollouts > count.errors}
        failed = {task_id for task_id, count in met.items() if count.is_hard(self._below)}
        self._hard = frozenset(failed | (before - met.keys()))
        self._counts = {}
        graduated = before - self._hard
        return {
            "hard": len(self._hard),
            "seen": len(met),
            "newly_hard": len(self._hard - before),
            "graduated": len(graduated),
            "solved_by_hint": sum(met[task_id].hinted for task_id in graduated),
        }

    def state_dict(self) -> State:
        counts = {i: list(astuple(count)) for i, count in self._counts.items()}
        return {"hard": list(self.hard), "counts": counts}

    def load_state_dict(self, state: State) -> None:
        self._hard = frozenset(state["hard"])
        self._counts = {i: _Count(*count) for i, count in state["counts"].items()}
