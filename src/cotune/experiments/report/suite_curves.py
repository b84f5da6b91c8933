"""A suite's curves: scores against policy rollouts, a line a seed."""

import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from cotune.errors import ConfigError
from cotune.experiments.compare.suite_summary import SuiteMethod
from cotune.experiments.report.charts import Point, moving_average
from cotune.run.costs import PURPOSES, CostRow
from cotune.run.run_dir import RunDir

Measure = Literal["validation", "reward"]
MEASURES: Mapping[Measure, str] = {"validation": "validation score", "reward": "training reward"}
_SMOOTHED_FROM = 8


@dataclass(frozen=True, slots=True)
class MethodCurves:
    """What is read from a method's run folders.

    Attributes:
        lines: (policy rollouts, y) of each seed that has any, its stages laid end to end.
        stages: rollouts at which a later stage starts, mean over the seeds.
        instructions: by seed.
        missing: what could not be read, one line each.
    """

    lines: Mapping[Measure, list[list[Point]]]
    stages: Sequence[float]
    instructions: Mapping[str, str]
    missing: list[str]

    @property
    def measure(self) -> Measure:
        """What to draw: validation if it was taken during training."""
        return "validation" if "validation" in self.lines else "reward"


@dataclass(frozen=True, slots=True)
class _Stage:
    """One run folder: (policy rollouts, value) by measure, and the rollouts that it paid for."""

    points: Mapping[Measure, list[Point]]
    rollouts: float
    instruction: str | None


def folder_of(suite: Path, name: str) -> Path | None:
    """Return a run folder that a suite's summary names; None if it is outside the suite's folder."""
    parts = PurePosixPath(name)
    inside = parts.parts and not parts.is_absolute() and ".." not in parts.parts
    return suite / name if inside else None


def read_curves(folder: Path, method: SuiteMethod) -> MethodCurves:
    """Read a method's run folders; missing or broken ones are listed, not raised."""
    missing: list[str] = []
    by_seed: dict[str, list[_Stage]] = {}
    for seed, names in method.runs.items():
        for name in names:
            path = folder_of(folder, name)
            try:
                if path is None or not RunDir.is_run(path):
                    raise ConfigError(f"{name}: no run folder")
                by_seed.setdefault(seed, []).append(_read_stage(RunDir.open(path)))
            except ConfigError as error:
                missing.append(str(error))
                break  # later stages would be at the wrong x
    by_seed = {seed: by_seed[seed] for seed in by_seed if seed in method.by_seed} or by_seed
    lines: dict[Measure, list[list[Point]]] = {}
    starts: list[list[float]] = []
    for stages in by_seed.values():
        offsets = [0.0, *itertools.accumulate(stage.rollouts for stage in stages)]
        starts.append(offsets[1:-1])
        for measure in MEASURES:
            parts = zip(offsets, stages, strict=False)
            line = [(at + x, y) for at, stage in parts for x, y in stage.points[measure]]
            if line:
                lines.setdefault(measure, []).append(line)
    texts = {
        seed: [s.instruction for s in stages if s.instruction] for seed, stages in by_seed.items()
    }
    return MethodCurves(
        lines,
        [sum(each) / len(each) for each in zip(*starts, strict=False)],
        {seed: found[-1] for seed, found in texts.items() if found},
        missing,
    )


def _read_stage(run: RunDir) -> _Stage:
    paid = frozenset(PURPOSES) - {"evaluate"}
    costs = [row for row in run.read_costs() if row.committed and row.kind in paid]
    trained = _sums(row for row in costs if row.kind == "train")
    others = _sums(row for row in costs if row.kind != "train")

    def placed(rows: Iterable[tuple[int, int, object]]) -> list[Point]:
        # An evaluation before a step comes after the evolution that was due there.
        known = [(trained(after) + others(step), y) for after, step, y in rows if costs]
        return [(x, float(y)) for x, y in known if isinstance(y, (int, float))]

    # For a filtered batch, the policy's reward is that before the filter.
    rewards = placed(
        (row["step"], row["step"], row.get("reward_mean"))
        for row in {row["step"]: row for row in run.read_metrics()}.values()
    )
    if len(rewards) >= _SMOOTHED_FROM:
        rewards = moving_average(rewards, max(3, round(len(rewards) / 10)))
    validation = placed(
        (event.get("trained", event["step"]), event["step"], event.get("em"))
        for event in run.read_events()
        if event["kind"] == "evaluated" and event.get("when") == "during"
    )
    text = (run.read_summary() or {}).get("best_instruction")
    total = sum(row.rollouts for row in costs)
    return _Stage({"validation": validation, "reward": rewards}, total, text)


def _sums(rows: Iterable[CostRow]) -> Callable[[int], float]:
    """Return a function of a step: the rollouts of these rows up to it."""
    by_step: Counter[int] = Counter()
    for row in rows:
        by_step[row.step] += row.rollouts
    steps = sorted(by_step)
    sums = [0, *itertools.accumulate(by_step[step] for step in steps)]
    return lambda step: float(sums[bisect.bisect_right(steps, step)])
