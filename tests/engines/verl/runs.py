"""Run files on veRL, tiny, and `cotune` on them in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.engines.verl.cpu.forks import Forked
from tests.engines.verl.cpu.settings import REPOSITORY, environment, overrides

GEO: dict[str, Any] = {
    "policy": {"path": "bundled:geo"},
    "environment": {"kind": "geo", "train": 200, "validation": 8, "test": 24},
    "limits": {"turns": 4, "turn_tokens": 64, "observation_tokens": 200, "trajectory_tokens": 640, "prompt_tokens": 384},
    "strategy": {"kind": "static"},
    "training": {"questions_per_step": 8, "group_size": 4, "micro_batch_size": 16},
    "evaluation": {"every": 0, "before": False},
    "logging": {"trajectories_every": 1},
}  # fmt: skip


def run_file(
    folder: Path,
    base: dict[str, Any] = GEO,
    *,
    strategy: dict[str, Any] | None = None,
    engine_args: dict[str, Any] | None = None,
    ranks: int = 1,
    **training: Any,
) -> Path:
    """A run file whose run folder is `folder`/run."""
    keys = {f"++{name}": value for name, value in (overrides(ranks) | (engine_args or {})).items()}
    shared = {"engine": "verl", "mini_batches": 1, "kl": 0, "schedule": "constant", "warmup": 0}
    raw = base | {
        "name": "on-verl",
        "output": str(folder / "run"),
        "strategy": strategy or base["strategy"],
        "training": shared
        | {"learning_rate": 1.0e-4, "save_every": 0}
        | base["training"]
        | training
        | {"engine_args": keys},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


def start(*arguments: object, variables: Mapping[str, str] | None = None) -> Forked:
    """`cotune …` in a process group of its own, with further environment variables."""
    env = environment() | dict(variables or {})
    return Forked("-m", "cotune", *map(str, arguments), env=env, cwd=REPOSITORY)


def cotune(
    *arguments: object, variables: Mapping[str, str] | None = None, fresh: bool = False
) -> str:
    """Runs `cotune …` to its end; returns what it printed. Fails with all of it.

    Args:
        fresh: start it and all of its processes anew, as a user does, and fork none.
    """
    if fresh:
        command = [sys.executable, "-m", "cotune", *map(str, arguments)]
        process = subprocess.Popen(
            command,
            env=environment() | dict(variables or {}),
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    else:
        process = start(*arguments, variables=variables)
    out, err = process.communicate()
    assert process.returncode == 0, f"status {process.returncode}\n{out[-4000:]}\n{err[-6000:]}"
    return out


def kill_once(process: Forked, reached: Callable[[], bool]) -> None:
    """Kill a run with all of its processes once it has reached what is waited for."""
    try:
        while not reached():
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON Lines file; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in rows(run / "events.jsonl") if row["kind"] == kind]


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))
