"""What a run did, as data that two engines' runs can be compared by."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isclose
from pathlib import Path
from typing import Any

from cotune.protocols import LLM, Recorder, Rollout, Strategy
from cotune.types import Assignment, Completion, Metrics, Progress, Trajectory

Row = dict[str, Any]


@dataclass(frozen=True)
class Recording:
    """A run of a script.

    Attributes:
        steps: of each step what the strategy was told and asked for, its events, metrics, best
            prompt and state after it (`watch`).
        updates: of each step the rows that the policy's update was made on, in the order of the
            rollouts (`update_row`); None of an engine that cannot show them.
    """

    steps: list[Row]
    updates: list[list[Row]] | None = field(default=None)

    @classmethod
    def read(cls, path: Path, updates: list[list[Row]] | None = None) -> "Recording":
        lines = path.read_text(encoding="utf-8").splitlines()
        return cls([json.loads(line) for line in lines], updates)


def update_row(
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    mask: Sequence[int],
    advantages: Sequence[float],
) -> Row:
    """A row of an update.

    Args:
        prompt_ids: without padding.
        completion_ids: without padding.
        mask: 1 where a token counts in the loss, (C,).
        advantages: what each token's loss is weighed with, (C,).
    """
    counted_advantages = [a for a, counts in zip(advantages, mask, strict=True) if counts]
    return {
        "prompt_ids": list(prompt_ids),
        "completion_ids": list(completion_ids),
        "mask": list(mask),
        "advantages": counted_advantages,
    }


def watch(strategy: Strategy, path: Path) -> None:
    """From now on writes a line to `path` after each step; in the process where the strategy lives."""
    _Watch(strategy, path)


class _Watch:
    """Stands between an engine and a strategy, which stays of its class."""

    def __init__(self, strategy: Any, path: Path) -> None:
        self._strategy, self._path = strategy, path
        self._evolve, self._assign = strategy.evolve_if_due, strategy.assign
        self._observe = strategy.observe
        strategy.evolve_if_due = self.evolve_if_due
        strategy.assign, strategy.observe = self.assign, self.observe
        self._row: Row = {}

    def evolve_if_due(
        self, progress: Progress, rollout: Rollout, llm: LLM, record: Recorder
    ) -> Metrics:
        self._row = {"progress": asdict(progress), "events": [], "asked": [], "rollouts": []}
        noted_llm = _NotedLLM(llm, self._row["asked"])
        metrics = self._evolve(progress, self._noted(rollout), noted_llm, self._heard(record))
        self._row["evolved"] = dict(metrics)
        return metrics

    def assign(self, tasks: Any, group_size: int, progress: Progress) -> list[Assignment]:
        assignments = self._assign(tasks, group_size, progress)
        self._row["assignments"] = [asdict(assignment) for assignment in assignments]
        return assignments

    def observe(
        self, trajectories: Sequence[Trajectory], progress: Progress, record: Recorder
    ) -> Metrics:
        metrics = self._observe(trajectories, progress, self._heard(record))
        self._row |= {
            "trajectories": [_row(trajectory) for trajectory in trajectories],
            "observed": dict(metrics),
            "best": asdict(self._strategy.best_prompt()),
            "best_id": self._strategy.best_instruction_id(),
            "state": self._strategy.state_dict(),
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self._row) + "\n")
        return metrics

    def _heard(self, record: Recorder) -> Recorder:
        def record_event(kind: str, /, **fields: object) -> None:
            self._row["events"].append([kind, fields])
            record(kind, **fields)

        return record_event

    def _noted(self, rollout: Rollout) -> Callable[..., list[Trajectory]]:
        def note_rollouts(
            assignments: Sequence[Assignment], *, purpose: str, greedy: bool = False
        ) -> list[Trajectory]:
            trajectories = rollout(assignments, purpose=purpose, greedy=greedy)
            rows = [_row(trajectory) for trajectory in trajectories]
            self._row["rollouts"].append({"purpose": purpose, "greedy": greedy, "rows": rows})
            return trajectories

        return note_rollouts


@dataclass(frozen=True)
class _NotedLLM:
    llm: LLM
    prompts: list[str]

    def complete(self, prompt: str) -> Completion:
        self.prompts.append(prompt)
        return self.llm.complete(prompt)


def differences(first: Recording, second: Recording, rel_tol: float = 1e-4) -> list[str]:
    """Where two recordings differ, by path; numbers are compared to rounding of float32.

    Args:
        first, second: updates are compared where both have them.
        rel_tol: by how much a number may be off, relative to the greater one.
    """
    both = (first, second)
    if first.updates is None or second.updates is None:
        both = (replace(first, updates=None), replace(second, updates=None))
    a, b = (json.loads(json.dumps(asdict(recording))) for recording in both)
    return _differences("", a, b, rel_tol)


def _row(trajectory: Trajectory) -> Row:
    """Return a rollout without what only reward functions read, which is not sent between processes."""
    row = asdict(trajectory) | {"turns": [turn.row() for turn in trajectory.turns]}
    del row["extra"]
    return row


def _differences(path: str, first: Any, second: Any, tol: float) -> list[str]:
    if isinstance(first, Mapping) and isinstance(second, Mapping) and first.keys() == second.keys():
        return [d for k in first for d in _differences(f"{path}.{k}", first[k], second[k], tol)]
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        pairs = enumerate(zip(first, second, strict=True))
        return [d for i, (a, b) in pairs for d in _differences(f"{path}[{i}]", a, b, tol)]
    if isinstance(first, float) and isinstance(second, float):
        same = isclose(first, second, rel_tol=tol, abs_tol=1e-5)
    else:
        same = first == second
    return [] if same else [f"{path}: {str(first)[:80]!r} is not {str(second)[:80]!r}"]
