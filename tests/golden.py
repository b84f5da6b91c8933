"""Golden runs: small training runs whose results a change of the code must reproduce exactly.

    python -m tests.golden check [NAME ...]        # run them again and print what differs
    python -m tests.golden record [NAME ...]       # replace what is stored in tests/golden_runs

A golden holds the run's events and metrics without times, a digest of each stored rollout, and the digest of
the trained weights. Floating-point results depend on the processor: on another machine, record them first at
the commit that the stored ones are from (`git log -1 tests/golden_runs`), then check the change against those.
veRL has none: two runs of one commit differ, as its rollouts come back in any order.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from difflib import unified_diff
from pathlib import Path
from typing import Any

import yaml
from safetensors.numpy import load_file

REPOSITORY = Path(__file__).parents[1]
STORED = Path(__file__).parent / "golden_runs"

_VOLATILE = re.compile(r"time|seconds|per_second|attempt$|runtime")

_LADDER: dict[str, Any] = {
    "policy": {"path": "bundled:ladder"},
    "environment": {"kind": "ladder", "train": 24, "validation": 8, "test": 8},
    "limits": {"turns": 1, "turn_tokens": 96, "observation_tokens": 1, "trajectory_tokens": 98, "prompt_tokens": 224},
    "llm": {"kind": "rules"},
    "threads": 1,
    "training": {
        "steps": 8,
        "questions_per_step": 6,
        "group_size": 4,
        "mini_batches": 1,
        "micro_batch_size": 24,
        "learning_rate": 1e-3,
        "schedule": "constant",
        "warmup": 0,
        "kl": 0,
        "save_every": 4,
        "single_gpu": True,
    },
    "evaluation": {"every": 4, "before": False},
    "logging": {"trajectories_every": 1},
}  # fmt: skip
_INSPO = {
    "kind": "inspo",
    "prune_every": 2,
    "evolve_every": 2,
    "evolve_until": 6,
    "verification_tasks": 6,
    "verification_rounds": 1,
}
_GEO = {
    "environment": {"kind": "geo", "train": 200, "validation": 8, "test": 8},
    "policy": {"path": "bundled:geo"},
    "limits": {"turns": 4, "turn_tokens": 64, "observation_tokens": 200, "trajectory_tokens": 640, "prompt_tokens": 384},
}  # fmt: skip

RUN_FILES: dict[str, dict[str, Any]] = {
    "inspo": _LADDER | _GEO | {"strategy": _INSPO},
    "p2o": _LADDER
    | _GEO
    | {
        "environment": _GEO["environment"] | {"train": 24},
        "strategy": {
            "kind": "p2o",
            "distillation": {"ratio": "masked_signed"},
            "hints": {"hard_set_min_count": 4, "dev_size": 6, "budget": 60, "beam": 2},
        },
    },
    "fst": _LADDER | {"strategy": {"kind": "fst", "prompts": 2, "evolve_every": 4, "budget": 40, "dev_size": 6}},
    "gepa": _LADDER | {"strategy": {"kind": "gepa", "budget": 60, "dev_size": 6}, "training": {"frozen": True, "single_gpu": True}},
    "mixed": _LADDER | {"strategy": _INSPO | {"groups": "mixed", "target": "initial"}},
    "last-stage": _LADDER | {"strategy": _INSPO | {"groups": "mixed", "verification": "trial", "distil_steps": 2}},
}  # fmt: skip
"""Run files on TRL by the name of their golden."""


def rollout_digest(row: dict[str, Any]) -> str:
    """Return one line for a stored rollout: where it belongs, its reward, and a digest of its tokens."""
    fields = ("prompt_ids", "trained_prompt_ids", "completion_ids", "mask")
    tokens = json.dumps([row[field] for field in fields])
    digest = hashlib.sha256(tokens.encode()).hexdigest()[:16]
    task, instruction = row["task"]["id"], row["instruction"]
    return f"{row['step']} {row['purpose']} {task} {instruction} {row['reward']!r} {digest}"


def weights_digest(folder: Path) -> str:
    """Return the digest of the safetensors files in a folder: names, shapes, types and values."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in sorted(load_file(path).items()):
            digest.update(f"{name} {tensor.shape} {tensor.dtype}".encode())
            digest.update(tensor.tobytes())
    return digest.hexdigest()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSON Lines file; none if it is missing, as in a run of a frozen policy."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def without_volatile(row: dict[str, Any], folder: Path) -> str:
    """Return a record as one line, without times and without the path of the run folder."""
    lasting = {key: value for key, value in row.items() if not _VOLATILE.search(key)}
    return json.dumps(lasting, sort_keys=True).replace(str(folder), "RUN")


def result_of(run: Path, weights: Path) -> dict[str, Any]:
    """Return what a golden holds.

    Args:
        run: the run folder.
        weights: the folder of the policy after the last step; a frozen policy has none.
    """
    rollouts = [
        rollout_digest(row)
        for path in sorted((run / "trajectories").glob("*.jsonl"))
        for row in read_lines(path)
    ]
    return {
        "events": [without_volatile(row, run) for row in read_lines(run / "events.jsonl")],
        "metrics": [without_volatile(row, run) for row in read_lines(run / "metrics.jsonl")],
        "rollouts": rollouts,
        "weights": [weights_digest(weights)],
    }


def execute(*arguments: object) -> None:
    """Run Python with one thread and the repository's sources.

    Raises:
        SystemExit: it failed; its output is the message.
    """
    path = os.pathsep.join(map(str, (REPOSITORY / "lab", REPOSITORY / "src", REPOSITORY)))
    process = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if process.returncode:
        raise SystemExit(process.stdout)


def train_run_file(name: str, folder: Path) -> dict[str, Any]:
    run_file, run = folder / "run.yaml", folder / "run"
    config = {"name": f"golden-{name}", "output": str(run), **RUN_FILES[name]}
    run_file.write_text(yaml.safe_dump(config), encoding="utf-8")
    execute("-m", "cotune", "train", run_file)
    steps = config["training"].get("steps")
    return result_of(run, run / "checkpoints" / f"checkpoint-{steps}")


def train_own_trainer(name: str, folder: Path) -> dict[str, Any]:
    """Train with the trainer of examples/own_trainer.py for three steps, and resume for two more."""
    script = REPOSITORY / "tests" / "golden_own_trainer.py"
    output = folder / "own-trainer"
    execute(script, "--steps", 3, "--seed", "0", "--output", output)
    execute(script, "--steps", 5, "--seed", "0", "--output", output, "--resume")
    return result_of(output / "cotune", output / "checkpoint-5")


RUNS: dict[str, Callable[[str, Path], dict[str, Any]]] = {
    **dict.fromkeys(RUN_FILES, train_run_file),
    "own-trainer": train_own_trainer,
}
"""All golden runs: what trains each and returns its result."""


def fresh_result(name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return RUNS[name](name, Path(folder).resolve())


def differences(stored: dict[str, Any], fresh: dict[str, Any]) -> list[str]:
    """Return the lines that differ, part by part, as a unified diff without context."""
    lines: list[str] = []
    for part in stored:
        lines += list(unified_diff(stored[part], fresh[part], part, part, lineterm="", n=0))
    return lines


def record(name: str) -> None:
    result = fresh_result(name) | {"processor": processor()}
    text = json.dumps(result, indent=0, ensure_ascii=False)
    (STORED / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(f"{name}: recorded, {len(result['rollouts'])} rollouts")


def check(name: str) -> bool:
    """Run a golden again; print what differs. Return whether it is equal."""
    stored = json.loads((STORED / f"{name}.json").read_text(encoding="utf-8"))
    recorded_on = stored.pop("processor")
    lines = differences(stored, fresh_result(name))
    if lines and recorded_on != processor():
        print(
            f"{name}: was recorded on {recorded_on}; this is {processor()}, see the module's text"
        )
    print(f"{name}: equal" if not lines else "\n".join([f"{name}: differs", *lines[:200]]))
    return not lines


def processor() -> str:
    """Return the processor's model: results of floating-point operations depend on it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description="Golden runs.")
    parser.add_argument("action", choices=("check", "record"))
    parser.add_argument("names", nargs="*", choices=[*RUNS, []], help="by default all")
    arguments = parser.parse_args()
    names = arguments.names or list(RUNS)
    if arguments.action == "record":
        for name in names:
            record(name)
    else:
        equal = [check(name) for name in names]
        sys.exit(not all(equal))


if __name__ == "__main__":
    main()
