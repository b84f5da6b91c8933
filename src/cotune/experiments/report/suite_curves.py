"""A suite's curves: scores against policy rollouts and wall time, means over seeds."""

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from cotune.errors import ConfigError
from cotune.experiments.compare.suite_summary import SuiteMethod
from cotune.experiments.report.charts import Point, moving_average
from cotune.run.frames import cost_rows
from cotune.run.json_files import Row
from cotune.run.ledger import PURPOSES
from cotune.run.run_dir import RunDir

Axis = Literal["rollouts", "seconds"]
Measure = Literal["validation", "reward"]
AXES: tuple[Axis, ...] = ("rollouts", "seconds")
MEASURES: Mapping[Measure, str] = {
    "validation": "validation score",
    "reward": "training reward",
}
_PAID = frozenset(PURPOSES) - {"evaluate"}
_GRID = 60
_SMOOTHED_FROM = 8


@dataclass(frozen=True, slots=True)
class Curve:
    """A mean over seeds, with the range of the seeds around it.

    Attributes:
        mean: (x, y), x ascending.
        band: (x, lowest, highest) at the same x.
        stages: x at which a later stage starts, mean over the seeds.
        seeds: how many were averaged.
    """

    mean: list[Point]
    band: list[tuple[float, float, float]]
    stages: list[float]
    seeds: int

    def scaled(self, divisor: float) -> "Curve":
        """Return the same with x in another unit."""
        return Curve(
            [(x / divisor, y) for x, y in self.mean],
            [(x / divisor, low, high) for x, low, high in self.band],
            [x / divisor for x in self.stages],
            self.seeds,
        )


@dataclass(frozen=True, slots=True)
class MethodCurves:
    """The curves and instructions read from a method's run folders.

    Attributes:
        curves: curves by measure and axis.
        instructions: by seed the best instruction of the last finished stage.
        missing: what could not be read, one line each.
    """

    curves: Mapping[tuple[Measure, Axis], Curve]
    instructions: Mapping[str, str]
    missing: list[str]

    @property
    def measure(self) -> Measure:
        """Validation scores if they were taken during training, else the training reward."""
        taken = any(measure == "validation" for measure, _ in self.curves)
        return "validation" if taken else "reward"


@dataclass(slots=True)
class _Stage:
    """One run folder: points of each measure on each axis, and its length on each."""

    points: dict[tuple[Measure, Axis], list[Point]]
    length: dict[Axis, float]
    instruction: str | None


def folder_of(suite: Path, named: str) -> Path | None:
    """Return a run folder that a suite's summary names; None if it is outside the suite's folder."""
    parts = PurePosixPath(named)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts:
        return None
    return suite / named


def read_curves(folder: Path, method: SuiteMethod) -> MethodCurves:
    """Read a method's run folders; missing or broken ones are listed, not raised."""
    missing: list[str] = []
    by_seed: dict[str, list[_Stage]] = {}
    for seed, named in method.runs.items():
        stages: list[_Stage] = []
        for name in named:
            path = folder_of(folder, name)
            try:
                if path is None or not RunDir.is_run(path):
                    raise ConfigError(f"{name}: no run folder")
                stages.append(_read_stage(RunDir.open(path)))
            except ConfigError as error:
                missing.append(str(error))
                break  # later stages would be at the wrong x
        if stages:
            by_seed[seed] = stages
    finished = {seed: found for seed, found in by_seed.items() if seed in method.by_seed}
    drawn = finished or by_seed
    curves: dict[tuple[Measure, Axis], Curve] = {
        (measure, axis): curve
        for measure in MEASURES
        for axis in AXES
        if (curve := _mean_curve(list(drawn.values()), measure, axis)) is not None
    }
    instructions = {
        seed: text
        for seed, stages in drawn.items()
        if (text := next((s.instruction for s in reversed(stages) if s.instruction), None))
    }
    return MethodCurves(curves, instructions, missing)


def _read_stage(run: RunDir) -> _Stage:
    events, metrics = run.read_events(), run.read_metrics()
    seconds = _Clock([*events, *metrics])
    costs = [r for r in cost_rows(run.ledger_path) if r["committed"] and r["kind"] in _PAID]
    trained = _Sums(row for row in costs if row["kind"] == "train")
    other = _Sums(row for row in costs if row["kind"] != "train")
    length: dict[Axis, float] = {
        "rollouts": trained.total + other.total,
        "seconds": max((seconds(row) for row in (*events, *metrics)), default=0.0),
    }

    def placed(rows: Iterable[tuple[int, Row, object]]) -> dict[Axis, list[Point]]:
        known = [(s, row, float(y)) for s, row, y in rows if isinstance(y, (int, float))]
        # An evaluation before a step comes after the evolution that was due there.
        spent = [(trained.until(s) + other.until(row["step"]), y) for s, row, y in known]
        taken = [(seconds(row), y) for _, row, y in known]
        return {"rollouts": spent if costs else [], "seconds": taken}

    steps = {row["step"]: row for row in metrics}
    rewards = placed((step, row, _reward(row)) for step, row in sorted(steps.items()))
    during = placed(
        (e.get("trained", e["step"]), e, e.get("em"))
        for e in events
        if e["kind"] == "evaluated" and e.get("when") == "during"
    )
    points: dict[tuple[Measure, Axis], list[Point]] = {}
    for axis in AXES:
        points["validation", axis] = during[axis]
        points["reward", axis] = _smooth(rewards[axis])
    text = (run.read_summary() or {}).get("best_instruction")
    return _Stage(points, length, text if isinstance(text, str) else None)


def _reward(row: Row) -> object:
    """Return the policy's reward; for a filtered batch, the reward before the filter."""
    return row.get("resample/reward_mean_before", row.get("reward_mean"))


class _Sums:
    """Rollouts of ledger rows up to a step."""

    def __init__(self, rows: Iterable[Row]) -> None:
        costs = sorted((row["step"], row["rollouts"]) for row in rows)
        self._steps = [step for step, _ in costs]
        self._sums = [0.0, *itertools.accumulate(float(rollouts) for _, rollouts in costs)]
        self.total = self._sums[-1]

    def until(self, step: int) -> float:
        return self._sums[bisect.bisect_right(self._steps, step)]


class _Clock:
    """Seconds of wall time at a line: earlier attempts from first to last line, then its own."""

    def __init__(self, rows: Sequence[Row]) -> None:
        spans: dict[int, list[float]] = {}
        for row in rows:
            spans.setdefault(int(row["attempt"]), []).append(float(row["time"]))
        self._starts: dict[int, tuple[float, float]] = {}
        before = 0.0
        for attempt, times in sorted(spans.items()):
            self._starts[attempt] = (min(times), before)
            before += max(times) - min(times)

    def __call__(self, row: Row) -> float:
        start, before = self._starts[int(row["attempt"])]
        return before + float(row["time"]) - start


def _smooth(points: list[Point]) -> list[Point]:
    if len(points) < _SMOOTHED_FROM:
        return points
    return moving_average(points, max(3, round(len(points) / 10)))


def _mean_curve(seeds: Sequence[Sequence[_Stage]], measure: Measure, axis: Axis) -> Curve | None:
    """Lay stages end to end, then take the mean over seeds where all of them have points."""
    lines: list[list[Point]] = []
    starts: list[list[float]] = []
    for stages in seeds:
        offsets = [0.0, *itertools.accumulate(stage.length[axis] for stage in stages)]
        line = [
            (offset + x, y)
            for offset, stage in zip(offsets, stages, strict=False)
            for x, y in stage.points[measure, axis]
        ]
        if line:
            lines.append(line)
            starts.append(offsets[1:-1])
    if not lines:
        return None
    shared = min(map(len, starts))
    stages_at = [math.fsum(each[i] for each in starts) / len(starts) for i in range(shared)]
    return Curve(*average(lines), stages_at, len(lines))


def average(
    lines: Sequence[Sequence[Point]],
) -> tuple[list[Point], list[tuple[float, float, float]]]:
    """Return the mean of lines and (x, lowest, highest) over their shared x, interpolated.

    Lines that share no stretch of x are averaged point by point in both, as far as the shortest goes.
    """
    xs = [np.array([x for x, _ in line]) for line in lines]
    ys = [np.array([y for _, y in line]) for line in lines]
    low, high = max(x[0] for x in xs), min(x[-1] for x in xs)
    if all(np.array_equal(x, xs[0]) for x in xs):
        grid = xs[0]
    elif low < high:
        grid = np.linspace(low, high, _GRID)
    else:
        points = [list(zip(*each, strict=True)) for each in zip(*lines, strict=False)]
        means = [(math.fsum(x) / len(x), math.fsum(y) / len(y)) for x, y in points]
        return means, [(x, min(y), max(y)) for (x, _), (_, y) in zip(means, points, strict=True)]
    values = np.stack([np.interp(grid, x, y) for x, y in zip(xs, ys, strict=True)])
    mean = list(zip(grid.tolist(), values.mean(axis=0).tolist(), strict=True))
    ends = (values.min(axis=0).tolist(), values.max(axis=0).tolist())
    return mean, list(zip(grid.tolist(), *ends, strict=True))
