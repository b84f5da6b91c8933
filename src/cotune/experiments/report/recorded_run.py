"""Read what a run's folder has recorded, as its report needs it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cotune.errors import ConfigError
from cotune.experiments.evaluate.quadrants import Quadrants, read_quadrants
from cotune.experiments.report.charts import Point
from cotune.experiments.report.rollouts import Group, Rollout, some_evaluated, some_groups
from cotune.run.best import BestRecord, read_best
from cotune.run.json_files import Row
from cotune.run.lineage import best_member
from cotune.run.run_dir import RunDir
from cotune.run.scores import EXACT_MATCH


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run folder, read.

    Attributes:
        name: the name in its summary; the folder's before there is one.
        summary: summary.json; {} before there is one.
        result: its figures, from the summary if there is one, else from events and metrics.
        finished: whether the summary has its result.
        shown: rollouts of an evaluation, lowest rewards first.
        shown_from: the file they are from ("evaluate, step 200") and how many it holds.
        groups: groups of training steps to show side by side.
        kept: which pair of policy and instruction is kept, and why; None without one.
        quadrants: the scores of `cotune evaluate --quadrants`; None without them.
    """

    name: str
    config: Row
    events: list[Row]
    metrics: list[Row]
    instructions: list[Row]
    summary: Row
    result: Row
    finished: bool
    shown: list[Rollout]
    shown_from: tuple[str, int] | None
    groups: list[Group]
    kept: BestRecord | None = None
    quadrants: Quadrants | None = None

    def of_kind(self, kind: str) -> list[Row]:
        return [event for event in self.events if event["kind"] == kind]

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
    def shares(self) -> bool:
        """Return True if its scores are shares of 1."""
        return self.measure == EXACT_MATCH

    @property
    def best(self) -> str | None:
        """Id of the best instruction: the one kept, else the one evaluated last, else the heaviest of
        those observed; None if unknown.
        """
        if self.kept is not None:
            return self.kept.instruction_id
        evaluated = [e for e in self.of_kind("evaluated") if e.get("instruction_id")]
        if final := [e for e in evaluated if e.get("prompt", "best") == "best"]:
            return final[-1]["instruction_id"]
        populations = self.of_kind("population")
        return best_member(populations[-1]["members"]) if populations else None

    def values(self, key: str) -> list[Point]:
        return values(self.metrics, key)


def values(rows: Iterable[Row], key: str) -> list[Point]:
    """Return (step, value) of the rows that have a number under `key`, the last one of a step."""
    found = {row["step"]: row[key] for row in rows if isinstance(row.get(key), (int, float))}
    return sorted((float(step), float(value)) for step, value in found.items())


def read_run(folder: Path) -> RecordedRun:
    """Read a run folder, finished or not. Raises ConfigError if it is none, or a file is broken."""
    if not RunDir.is_run(folder):
        raise ConfigError(f"{folder} holds no run; give the `output` folder of a run or a suite")
    run = RunDir.open(folder)
    summary = run.read_summary() or {}
    nothing = folder.resolve().name, None
    name, result = next(iter((summary.get("arms") or {}).items()), nothing)
    events, metrics = run.read_events(), run.read_metrics()
    known = {key: value for key, value in (result or {}).items() if value is not None}
    return RecordedRun(
        name, run.read_config(), events, metrics, run.read_instructions(), summary,
        result_so_far(events, metrics) | known, result is not None,
        *some_evaluated(run), some_groups(run), read_best(run.best_path),
        read_quadrants(folder),
    )  # fmt: skip


def result_so_far(events: Sequence[Row], metrics: Sequence[Row]) -> Row:
    """Return what events and metrics say about the result, under the keys of a summary's arm."""

    def evaluated(when: str) -> list[Row]:
        return [e for e in events if e["kind"] == "evaluated" and e.get("when") == when]

    result: Row = {}
    after = [event for event in evaluated("after") if event.get("prompt", "best") == "best"]
    split = after[-1].get("split") if after else None
    before = [event for event in evaluated("before") if split in (None, event.get("split"))]
    for suffix, found in (("", after), ("_before", before)):
        if found:
            result[f"em{suffix}"] = found[-1].get("em")
            result[f"em{suffix}_by_stratum"] = found[-1].get("by_stratum") or {}
    for key in ("generated_tokens", "seconds"):
        recorded = [row[key] for row in metrics if row.get(key) is not None]
        if recorded:
            result[key] = math.fsum(recorded)
    return result
