"""Read what a run's folder has recorded, as its report needs it."""

import math
from collections.abc import Iterable
from pathlib import Path

from cotune.experiments.evaluate.quadrants import read_quadrants
from cotune.experiments.report.charts import Point
from cotune.run.best import read_best
from cotune.run.json_files import Row
from cotune.run.lineage import instruction_rows
from cotune.run.run_dir import RunDir
from cotune.run.scores import EXACT_MATCH
from cotune.utils.tables import Scores


class RecordedRun:
    """A run folder, read, finished or not.

    Attributes:
        name: the name in its summary; the folder's before there is one.
        summary: summary.json; {} before there is one.
        result: its figures, from the summary if there is one, else from events and metrics.
        finished: whether the summary has its result.
        instructions: all that it ever had, by birth.
        kept: which pair of policy and instruction is kept, and why; None without one.
        quadrants: the scores of `cotune evaluate --quadrants`; None without them.
    """

    def __init__(self, folder: Path) -> None:
        """Read the folder. Raises ConfigError if it is no run's, or one of its files is broken."""
        self.folder = RunDir.open(folder)
        self.config = self.folder.read_config()
        self.events, self.metrics = self.folder.read_events(), self.folder.read_metrics()
        self.instructions = instruction_rows(self.folder)
        self.summary = self.folder.read_summary() or {}
        unnamed = folder.resolve().name, None
        self.name, arm = next(iter((self.summary.get("arms") or {}).items()), unnamed)
        self.finished = arm is not None
        figures = {key: value for key, value in (arm or {}).items() if value is not None}
        self.result = self._result_so_far() | figures
        self.kept, self.quadrants = read_best(self.folder.best_path), read_quadrants(folder)

    def of_kind(self, kind: str) -> list[Row]:
        return [event for event in self.events if event["kind"] == kind]

    def values(self, key: str) -> list[Point]:
        return values(self.metrics, key)

    @property
    def steps(self) -> int:
        """The last step that has metrics; 0 before the first."""
        return max((row["step"] for row in self.metrics), default=0)

    @property
    def measure(self) -> str:
        """The name of its scores: "exact match" or "mean reward"."""
        recorded = (event.get("measure") for event in reversed(self.of_kind("evaluated")))
        return self.result.get("measure") or next(filter(None, recorded), EXACT_MATCH)

    @property
    def scores(self) -> Scores:
        return Scores(self.measure == EXACT_MATCH)

    def _result_so_far(self) -> Row:
        """Return what events and metrics say about the result, under the keys of a summary's arm."""
        result: Row = {}
        for event in self.of_kind("evaluated"):
            name = {"before": "em_before", "after": "em"}.get(event.get("when", ""))
            if name:
                result[name] = event.get("em")
                result[f"{name}_by_stratum"] = event.get("by_stratum") or {}
        for key in ("generated_tokens", "seconds"):
            recorded = [row[key] for row in self.metrics if row.get(key) is not None]
            if recorded:
                result[key] = math.fsum(recorded)
        return result


def values(rows: Iterable[Row], key: str) -> list[Point]:
    """Return (step, value) of the rows that have a number under `key`, the last one of a step."""
    by_step = {row["step"]: row[key] for row in rows if isinstance(row.get(key), (int, float))}
    return sorted((float(step), float(value)) for step, value in by_step.items())
