"""What a report is made of, read from a run folder or a folder of several arms."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cotune.errors import ConfigError
from cotune.experiments.report.groups import Group, Rollout, show_rollout, some_groups
from cotune.experiments.report.tokens import read_tokenizer
from cotune.run.json_files import Row
from cotune.run.run_dir import RunDir, read_summary
from cotune.run.scores import EXACT_MATCH, mean_over
from cotune.worlds.arithmetic_world import HARD

_SHOWN, _SHOWN_BEST = 10, 3


@dataclass(frozen=True, slots=True)
class Arm:
    """One run of a report.

    Attributes:
        name: of the arm; the run's own where there is one only.
        config: its run.yaml; {} where its folder is not there.
        events: events.jsonl.
        metrics: metrics.jsonl.
        instructions: instructions.jsonl.
        result: its numbers: those of a summary, else what its lines say.
        finished: whether a summary has its result.
        shown: rollouts of an evaluation to show, lowest rewards first.
        shown_from: the file they are from ("evaluate, step 200") and how many it holds.
        groups: of training steps, to show side by side.
    """

    name: str
    config: Row
    events: list[Row]
    metrics: list[Row]
    instructions: list[Row]
    result: Row
    finished: bool
    shown: list[Rollout]
    shown_from: tuple[str, int] | None
    groups: list[Group] = field(default_factory=list[Group])

    def of_kind(self, kind: str) -> list[Row]:
        return [event for event in self.events if event["kind"] == kind]

    @property
    def steps(self) -> int:
        """The last step that has metrics; 0 before the first."""
        return max((row["step"] for row in self.metrics), default=0)

    @property
    def measure(self) -> str:
        """What its scores are of: "exact match" or "mean reward"."""
        told = (event.get("measure") for event in reversed(self.of_kind("evaluated")))
        return self.result.get("measure") or next(filter(None, told), EXACT_MATCH)

    @property
    def best(self) -> str | None:
        """Id of the best instruction: the one evaluated last, else the heaviest; None if unknown."""
        evaluated = [e for e in self.of_kind("evaluated") if e.get("instruction_id")]
        if final := [e for e in evaluated if e.get("prompt", "best") == "best"]:
            return final[-1]["instruction_id"]
        populations = self.of_kind("population")
        members = populations[-1].get("members") or [] if populations else []
        return max(members, key=lambda m: m.get("weight") or 0.0)["id"] if members else None


@dataclass(frozen=True, slots=True)
class Source:
    """A folder's arms and its summary; None where the run left none."""

    folder: Path
    summary: Row | None
    arms: list[Arm]


def read_source(folder: Path) -> Source:
    """Reads a run folder, or a folder whose subfolders are the arms of a comparison.

    Raises:
        ConfigError: neither of the two, or a file in it is broken.
    """
    if RunDir.is_run(folder):
        run = RunDir.open(folder)
        summary = run.read_summary()
        listed = (summary or {}).get("arms") or {}
        if len(listed) < 2:
            name, result = next(iter(listed.items()), (folder.resolve().name, None))
            return Source(folder, summary, [read_arm(name, run, result)])
    else:
        summary = read_summary(folder)
        listed = (summary or {}).get("arms") or {}
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
    return Source(folder, summary, arms)


def read_arm(name: str, run: RunDir | None, result: Mapping[str, Any] | None) -> Arm:
    """One arm; `result` is its entry in a summary, else its own summary's is used."""
    if run is None:
        return Arm(name, {}, [], [], [], dict(result or {}), result is not None, [], None)
    if result is None:
        own = ((run.read_summary() or {}).get("arms") or {}).values()
        result = next(iter(own), None)
    events, metrics = run.read_events(), run.read_metrics()
    merged = result_so_far(events, metrics) | {
        key: value for key, value in (result or {}).items() if value is not None
    }
    shown, shown_from = _some_trajectories(run)
    return Arm(
        name, run.read_config(), events, metrics, run.read_instructions(),
        merged, result is not None, shown, shown_from, some_groups(run),
    )  # fmt: skip


def result_so_far(events: Sequence[Row], metrics: Sequence[Row]) -> Row:
    """What a run's lines say of its result; keys as in a summary's arm, only those known."""
    result: Row = {}
    evaluated = [event for event in events if event["kind"] == "evaluated"]
    after = [
        event
        for event in evaluated
        if event.get("when") == "after" and event.get("prompt", "best") == "best"
    ]
    split = after[-1].get("split") if after else None
    before = [
        event
        for event in evaluated
        if event.get("when") == "before" and split in (None, event.get("split"))
    ]
    for suffix, found in (("", after), ("_before", before)):
        if found:
            result[f"em{suffix}"] = found[-1].get("em")
            strata = found[-1].get("by_stratum") or {}
            result[f"em{suffix}_by_stratum"] = strata
            if (hard := mean_over(strata, HARD)) is not None:
                result[f"accuracy_hard{suffix}"] = hard[0]
                result["accuracy_hard_n"] = hard[1]
    for key in ("generated_tokens", "seconds"):
        values = [row[key] for row in metrics if row.get(key) is not None]
        if values:
            result[key] = math.fsum(values)
    return result


def stratum_value(value: object) -> float | None:
    """The EM of a stratum that is stored as EM or as [EM, n]."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = value[0] if value else None
    return float(value) if isinstance(value, (int, float)) else None


def sample_sizes(arm: Arm) -> tuple[int | None, dict[str, int]]:
    """How many questions the last evaluation had: overall and by stratum."""
    evaluated = arm.of_kind("evaluated")
    if not evaluated:
        return None, {}
    final = next((e for e in reversed(evaluated) if e.get("when") == "after"), evaluated[-1])
    pairs = (final.get("by_stratum") or {}).items()
    return final.get("n"), {name: v[1] for name, v in pairs if isinstance(v, list) and len(v) > 1}


_RANK = {"evaluate_after": 3, "evaluate_during": 2, "evaluate": 2}


def _some_trajectories(run: RunDir) -> tuple[list[Rollout], tuple[str, int] | None]:
    """Rollouts of the evaluation after training, else of the newest one."""
    files = [file for file in run.trajectory_files() if file[1] != "train"]
    if not files:
        return [], None
    step, purpose = max(files, key=lambda file: (_RANK.get(file[1], 0), file))
    rows = run.read_trajectories(step, purpose)
    chosen, tokenizer = choose_trajectories(rows, _SHOWN, _SHOWN_BEST), read_tokenizer(run.path)
    return [show_rollout(row, tokenizer) for row in chosen], (f"{purpose}, step {step}", len(rows))


def choose_trajectories(rows: Sequence[Row], shown: int, best: int) -> list[Row]:
    """`shown` of the rows: the lowest rewards first, at the end `best` of the highest.

    Among equal rewards the ways to stop and the strata take turns.
    """

    def by_reward(rows: Sequence[Row], sign: float) -> list[Row]:
        seen: Counter[tuple[object, ...]] = Counter()
        keys: list[tuple[float, int]] = []
        for row in rows:
            bucket = (row["reward"], row["stop"], row["task"]["stratum"])
            keys.append((sign * (row["reward"] or 0.0), seen[bucket]))
            seen[bucket] += 1
        order = sorted(range(len(rows)), key=keys.__getitem__)
        return [rows[i] for i in order]

    if len(rows) <= shown:
        return by_reward(rows, 1.0)
    lowest = by_reward(rows, 1.0)
    return lowest[: shown - best] + by_reward(lowest[shown - best :], -1.0)[:best]
