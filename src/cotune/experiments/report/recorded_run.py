"""Read what a run's folder has recorded, as its report needs it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cotune.experiments.evaluate.quadrants import read_quadrants
from cotune.experiments.report.charts import Point
from cotune.run.best import read_best
from cotune.run.json_files import Row
from cotune.run.lineage import instruction_rows
from cotune.run.run_dir import RunDir
from cotune.run.scores import EXACT_MATCH, Score, difference_interval, recorded_score
from cotune.utils.tables import Scores


@dataclass(frozen=True)
class Evaluation:
    """An evaluation on held-out questions.

    Attributes:
        rewards: by question; {} if its rollouts are not stored.
    """

    score: Score
    rewards: Mapping[str, float]

    def gain_interval(self, before: "Evaluation") -> tuple[float, float] | None:
        """Return the 95 % interval of the gain over an earlier one; None if they have not the same questions."""
        if not self.rewards or self.rewards.keys() != before.rewards.keys():
            return None
        return difference_interval([self.rewards[q] - before.rewards[q] for q in self.rewards])


class RecordedRun:
    """A run folder, read, finished or not.

    Attributes:
        name: the name in its run file; the folder's without one.
        finished: whether it has its result.
        instructions: all that it ever had, by birth.
        kept: which pair of policy and instruction is kept, and why; None without one.
        quadrants: the scores of `cotune evaluate --quadrants`; None without them.
        measure: the name of its scores: "exact match" or "mean reward".
    """

    def __init__(self, folder: Path) -> None:
        """Read the folder. Raises ConfigError if it is no run's, or one of its files is broken."""
        self.folder = RunDir.open(folder)
        self.config = self.folder.read_config()
        self.events = self.folder.read_events()
        self.metrics = self.folder.read_metrics()
        self.instructions = instruction_rows(self.folder)
        self.name = self.config.get("name") or folder.resolve().name
        self.summary = self.folder.read_summary() or {}
        self.finished = bool(self.summary)
        self.kept = read_best(self.folder.best_path)
        self.quadrants = read_quadrants(folder)
        measures = [event.get("measure") for event in self.of_kind("evaluated")]
        self.measure = next(filter(None, reversed(measures)), EXACT_MATCH)

    def of_kind(self, kind: str) -> list[Row]:
        return [event for event in self.events if event["kind"] == kind]

    def values(self, key: str) -> list[Point]:
        return values(self.metrics, key)

    @property
    def steps(self) -> int:
        """The last step that has metrics; 0 before the first."""
        return max((row["step"] for row in self.metrics), default=0)

    @property
    def scores(self) -> Scores:
        return Scores(self.measure == EXACT_MATCH)

    @cached_property
    def evaluations(self) -> dict[str, Evaluation]:
        """The evaluations that it has of "before", "plain" and "after"."""
        read = ((when, self._evaluation(when)) for when in ("before", "plain", "after"))
        return {when: evaluation for when, evaluation in read if evaluation is not None}

    def _evaluation(self, when: str) -> Evaluation | None:
        events = [event for event in self.of_kind("evaluated") if event.get("when") == when]
        if not events or events[-1].get("em") is None:
            return None
        rows = self.folder.read_evaluation(when)
        rewards = {row["task"]["id"]: float(row["reward"] or 0.0) for row in rows}
        return Evaluation(recorded_score(events[-1], rows, self.measure), rewards)


def values(rows: Iterable[Row], key: str) -> list[Point]:
    """Return (step, value) of the rows that have a number under `key`, the last one of a step."""
    by_step = {row["step"]: row[key] for row in rows if isinstance(row.get(key), (int, float))}
    return sorted((float(step), float(value)) for step, value in by_step.items())
