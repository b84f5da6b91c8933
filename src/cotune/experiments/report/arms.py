"""A report's arms, read from a run folder or from a folder of several runs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cotune.errors import ConfigError
from cotune.experiments.report.charts import Point
from cotune.experiments.report.rollouts import Group, Rollout, some_evaluated, some_groups
from cotune.run.json_files import Row
from cotune.run.run_dir import RunDir, read_summary
from cotune.run.scores import EXACT_MATCH, mean_over
from cotune.worlds.arithmetic import HARD


@dataclass(frozen=True, slots=True)
class Arm:
    """One run of a report.

    Attributes:
        name: the arm's name; the folder's if there is only one.
        config: its run.yaml; {} if its folder is gone.
        events: events.jsonl.
        metrics: metrics.jsonl.
        instructions: instructions.jsonl.
        result: its numbers, from a summary if there is one, else from its lines.
        finished: whether a summary has its result.
        shown: rollouts of an evaluation to show, lowest rewards first.
        shown_from: the file they are from ("evaluate, step 200") and how many it holds.
        groups: groups of training steps to show side by side.
    """

    name: str
    config: Row
    events: list[Row]
    metrics: list[Row]
    instructions: list[Row]
    result: Row
    finished: bool
    shown: list[Rollout] = field(default_factory=list[Rollout])
    shown_from: tuple[str, int] | None = None
    groups: list[Group] = field(default_factory=list[Group])

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
    def best(self) -> str | None:
        """Id of the best instruction: the one evaluated last, else the heaviest; None if unknown."""
        evaluated = [e for e in self.of_kind("evaluated") if e.get("instruction_id")]
        if final := [e for e in evaluated if e.get("prompt", "best") == "best"]:
            return final[-1]["instruction_id"]
        populations = self.of_kind("population")
        members = populations[-1].get("members") or [] if populations else []
        return max(members, key=lambda m: m.get("weight") or 0.0)["id"] if members else None


def values(rows: Iterable[Row], key: str) -> list[Point]:
    """Return (step, value) of the rows that have a number under `key`, the last one of a step."""
    found = {row["step"]: row[key] for row in rows if isinstance(row.get(key), (int, float))}
    return sorted((float(step), float(value)) for step, value in found.items())


def read_arms(folder: Path) -> tuple[Row | None, list[Arm]]:
    """Read a run folder, or a folder whose subfolders are the arms of a comparison.

    Returns:
        The summary, None if there is none, and the arms.

    Raises:
        ConfigError: neither of the two, or a file in it is broken.
    """
    run = RunDir.open(folder) if RunDir.is_run(folder) else None
    summary = read_summary(folder) if run is None else run.read_summary()
    listed = (summary or {}).get("arms") or {}
    if run is not None and len(listed) < 2:
        name, result = next(iter(listed.items()), (folder.resolve().name, None))
        return summary, [read_arm(name, run, result)]
    arms = [
        read_arm(name, RunDir.open(path) if RunDir.is_run(path) else None, result)
        for name, result in listed.items()
        for path in [folder / (result.get("folder") or name)]
    ]
    if not listed and folder.is_dir():
        paths = sorted(path for path in folder.iterdir() if RunDir.is_run(path))
        arms = [read_arm(path.name, RunDir.open(path), None) for path in paths]
    if not arms:
        raise ConfigError(f"{folder} holds no run; give the `output` folder of a run or comparison")
    return summary, arms


def read_arm(name: str, run: RunDir | None, result: Mapping[str, Any] | None) -> Arm:
    """Read one arm; `result` is its entry in a summary, else that of its own summary is used."""
    if run is None:
        return Arm(name, {}, [], [], [], dict(result or {}), result is not None)
    if result is None:
        own = ((run.read_summary() or {}).get("arms") or {}).values()
        result = next(iter(own), None)
    events, metrics = run.read_events(), run.read_metrics()
    known = {key: value for key, value in (result or {}).items() if value is not None}
    return Arm(
        name, run.read_config(), events, metrics, run.read_instructions(),
        result_so_far(events, metrics) | known, result is not None,
        *some_evaluated(run), some_groups(run),
    )  # fmt: skip


def result_so_far(events: Sequence[Row], metrics: Sequence[Row]) -> Row:
    """Return what a run's lines say of its result; keys as in a summary's arm, only those known."""

    def evaluated(when: str) -> list[Row]:
        return [e for e in events if e["kind"] == "evaluated" and e.get("when") == when]

    result: Row = {}
    after = [event for event in evaluated("after") if event.get("prompt", "best") == "best"]
    split = after[-1].get("split") if after else None
    before = [event for event in evaluated("before") if split in (None, event.get("split"))]
    for suffix, found in (("", after), ("_before", before)):
        if found:
            result[f"em{suffix}"] = found[-1].get("em")
            strata = found[-1].get("by_stratum") or {}
            result[f"em{suffix}_by_stratum"] = strata
            if (hard := mean_over(strata, HARD)) is not None:
                result[f"accuracy_hard{suffix}"] = hard[0]
                result["accuracy_hard_n"] = hard[1]
    for key in ("generated_tokens", "seconds"):
        recorded = [row[key] for row in metrics if row.get(key) is not None]
        if recorded:
            result[key] = math.fsum(recorded)
    return result
