"""What the benchmarks share: runs of many arms over seeds, kept and gone on with, and intervals."""

import shutil
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, cast

import numpy as np
from rich.console import Console

from cotune.config import RunConfig, dump_config, load_config
from cotune.experiments.arms import Arm, run_arms
from cotune.llm.ledger import policy_rollouts
from cotune.run_dir import RunDir, read_summary

STATIC: dict[str, Any] = {"strategy": {"kind": "static"}, "llm": None}
"""What makes GRPO with a static instruction of any run file."""


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """`first` with changes; nested mappings are merged, sections of another kind replaced."""
    result = dict(first)
    for key, value in second.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            section, change = cast("dict[str, Any]", old), cast("dict[str, Any]", value)
            if change.get("kind", section.get("kind")) == section.get("kind"):
                result[key] = merged(section, change)
                continue
        result[key] = value
    return result


def shipped(name: str, changes: Mapping[str, Any]) -> RunConfig:
    """A run file of this package with changes."""
    with resources.as_file(resources.files("cotune.experiments") / name) as file:
        return load_config(file, merged(load_config(file).model_dump(mode="json"), changes))


def slug(name: str) -> str:
    """A folder's name for an arm's."""
    return name.replace(",", "").replace(" ", "-")


def finished(one: Arm) -> bool:
    """Whether the folder holds this very run, to its end. Other weights ask for another folder."""
    if read_summary(one.folder) is None:
        return False
    return RunDir.open(one.folder).read_config() == dump_config(one.config)


def run_missing(arms: Sequence[Arm], console: Console, at_once: int = 2) -> None:
    """Runs the arms that are not finished, `at_once` at a time, printing every tenth step."""
    todo: list[Arm] = []
    for one in arms:
        if not finished(one):
            if RunDir.is_run(one.folder):
                shutil.rmtree(one.folder)  # cut off half-way; runs of this size start anew
            todo.append(one)
    shown: dict[str, int] = {}

    def watch(now: Sequence[Arm]) -> None:
        for one in now:
            if one.process is not None and (rows := one.metrics()):
                key, step = str(one.folder), int(rows[-1]["step"])
                if step >= shown.get(key, 0) + 10:
                    shown[key] = step
                    console.print(f"{one.folder.name}: step {step}", highlight=False)

    run_arms(todo, at_once=at_once, watch=watch, every=2.0)


def figures_of(one: Arm) -> dict[str, Any]:
    """The summary of a finished run's one arm."""
    summary = read_summary(one.folder)
    if summary is None:
        raise SystemExit(f"{one.folder} is not finished")
    return next(iter(summary["arms"].values()))


def paid(figures: Mapping[str, Any]) -> int:
    """Policy rollouts of a run: all but those of its evaluations."""
    return policy_rollouts(figures["policy_rollouts"])


def rewards(one: Arm, stratum: str = "") -> np.ndarray:
    """Held-out rewards after training, in the order of the test questions.

    Args:
        stratum: how the strata begin whose questions count.
    """
    run = RunDir.open(one.folder)
    step = next(e["step"] for e in run.read_events() if e.get("when") == "after")
    rows = run.read_trajectories(step, "evaluate_after")
    return np.array([row["reward"] for row in rows if row["task"]["stratum"].startswith(stratum)])


def interval(samples: np.ndarray, draws: int = 10_000) -> tuple[float, float]:
    """95 % bootstrap interval of the mean of (seeds, questions), both resampled."""
    rng = np.random.default_rng(0)
    seeds, questions = samples.shape
    means = np.empty(draws)
    for i in range(draws):
        rows = samples[rng.integers(seeds, size=seeds)]
        means[i] = rows[:, rng.integers(questions, size=questions)].mean()
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
