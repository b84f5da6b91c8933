"""Whole runs of a small run file, killed at given places and gone on with."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import yaml

from cotune.run.run_dir import RunDir
from tests.forked import run_module
from tests.policy.tiny import small_policy

KILLED_RUN = "tests.engines.trl.killed_run"

# Six tasks, two a step: an epoch takes three steps. Saved every two steps.
RUN: dict[str, Any] = {
    "name": "killed",
    "seed": 1,
    "threads": 1,
    "environment": {"kind": "geo", "train": 6, "validation": 3, "test": 3},
    "limits": {"turns": 2, "turn_tokens": 12, "observation_tokens": 40, "trajectory_tokens": 120, "prompt_tokens": 384},
    "strategy": {
        "kind": "inspo",
        "population_size": 3,
        "prune_every": 4,
        "evolve_every": 2,
        "evolve_until": 7,
        "verification_tasks": 3,
        "verification_rounds": 1,
        "candidates": 2,
    },
    "llm": {"kind": "rules"},
    "training": {
        "steps": 8,
        "questions_per_step": 2,
        "group_size": 3,
        "mini_batches": 1,
        "micro_batch_size": 6,
        "learning_rate": 1e-3,
        "schedule": "linear",
        "kl": 0,
        "save_every": 2,
    },
    "evaluation": {"every": 4, "before": True},
}  # fmt: skip

OF_ONE_ATTEMPT = {"time", "attempt", "step_time"}
"""Fields that say when something was, or in which attempt."""
ABOUT_THE_ATTEMPT = {"run_started", "resumed", "saved", "cut_back", "notice", "run_finished"}
"""Events about attempts, not about what was learnt."""


def cotune(
    place: str, step: int, *command: str, sampled: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """The command line, killed at a place; `sampled` is where each live call is noted."""
    env = {"SAMPLED": str(sampled or os.devnull)}
    return run_module(KILLED_RUN, place, step, *command, "--quiet", env=env)


def with_sections(**sections: dict[str, Any]) -> dict[str, Any]:
    """RUN with `sections` merged into its sections."""
    return {**RUN, **{key: {**RUN.get(key, {}), **section} for key, section in sections.items()}}


def run_file(folder: Path, name: str, content: dict[str, Any] = RUN) -> Path:
    """Write a run file whose policy is a small one unless `content` names another."""
    path, policy = folder / f"{name}.yaml", {"path": small_policy(), **content.get("policy", {})}
    run_config = {**content, "policy": policy, "output": str(folder / name)}
    path.write_text(yaml.safe_dump(run_config))
    return path


def run_with_kills(path: Path, kills: list[tuple[str, int]], sampled: Path | None = None) -> RunDir:
    """Trains a run file through all kills to its end."""
    folder = path.with_suffix("")
    command = ["train", str(path)]
    for place, step in kills:
        child = cotune(place, step, *command, sampled=sampled)
        assert child.returncode == -signal.SIGKILL, f"{place} {step}: {child.stdout}{child.stderr}"
        command = ["resume", str(folder)]
    child = cotune("nowhere", 0, *command, sampled=sampled)
    assert child.returncode == 0, child.stdout + child.stderr
    return RunDir.open(folder)


def numbers(run: RunDir) -> list[dict[str, Any]]:
    """metrics.jsonl, comparable over attempts."""
    return without(run.read_metrics(), OF_ONE_ATTEMPT)


def arm(run: RunDir) -> dict[str, Any]:
    """The summary's arm without its time."""
    summary = run.read_summary()
    assert summary is not None
    (row,) = summary["arms"].values()
    return {k: v for k, v in row.items() if k != "seconds"}


def without(rows: list[dict[str, Any]], fields: set[str]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in fields} for row in rows]


def learnt(run: RunDir) -> list[dict[str, Any]]:
    events = [row for row in run.read_events() if row["kind"] not in ABOUT_THE_ATTEMPT]
    return without(events, OF_ONE_ATTEMPT)


def check_that_they_end_alike(broken: RunDir, unbroken: RunDir) -> None:
    """Compare what was logged, learnt, spent and summed up."""
    for read in (numbers, learnt, spent, arm):
        assert read(broken) == read(unbroken)


def spent(run: RunDir) -> dict[str, Any]:
    totals = run.totals()
    names = ("rollouts", "generated_tokens", "llm_calls")
    prompts = sum(row.prompt_tokens for row in run.read_costs() if row.committed)
    return {name: getattr(totals, name) for name in names} | {"prompt_tokens": prompts}
