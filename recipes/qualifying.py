"""Check that a world can tell joint training from staged; shared by the worlds' `qualify`.

No joint method runs here, only static GRPO. The bank of requests is scored under the initial policy. The
policy is then trained under the first request of the best section and, separately, under the initial
instruction; after each training the bank is scored again.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import torch

from cotune.policy.policy_files import policy_path
from recipes.measuring import Bench, Figure, read_bank

UNDER = 4000
"""Rollouts under the request of the first training: 0.1 % of them are 4."""
FOUND = 0.5
"""Score that training under the initial instruction must stay below."""

Sections = dict[str, Figure]


def apart(a: Figure, b: Figure) -> float:
    """Return how many standard errors the first score is above the second."""
    error = math.sqrt(sum(f.score * (1 - f.score) / f.n for f in (a, b)))
    return (a.score - b.score) / max(error, 1e-9)


def checks(
    procedures: tuple[str, str], before: Sections, under: Figure, after: Sections, static: Sections
) -> dict[str, bool]:
    """Return what must hold for the world, in words with figures, and whether it does.

    Args:
        procedures: the sections of the bank that ask for a way, each named like it.
        before: by section, of the initial policy.
        under: of the initial policy under the request that it is trained under.
        after: by section, after that training.
        static: by section, after training under the initial instruction.
    """
    first, other = sorted(procedures, key=lambda name: -before[name].score)
    best = apart(before[first], before[other])
    flipped = apart(after[other], after[first])
    opposite = apart(before["initial"], before["opposite"])
    neutral = apart(before["initial"], before["off-topic"])
    rare = under.ways[other]
    return {
        f"{first} is best at first by {best:.1f} standard errors": best > 2,
        f"{other} is best afterwards by {flipped:.1f} standard errors": flipped > 2,
        f"{other} is {rare:.2%} of the rollouts under the first": rare < 0.001,
        f"opposites are {opposite:.1f} standard errors below the initial instruction": opposite > 2,
        f"off-topic is within 2: {neutral:.1f}": abs(neutral) <= 2,
        f"static GRPO ends at {static['initial'].score:.3f}": static["initial"].score < FOUND,
    }


def train(
    run_file: Path, folder: Path, out: Path, instruction: str, seed: int, changes: list[str]
) -> Path:
    """Train by static GRPO under an instruction; return the folder of the last policy that is kept."""
    fields = [
        f"policy.path={folder}", f"output={out}", f"seed={seed}", "strategy={kind: static}",
        f"instruction.text={json.dumps(instruction)}", *changes,
    ]  # fmt: skip
    sets = [part for field in fields for part in ("--set", field)]
    subprocess.run([sys.executable, "-m", "cotune", "train", str(run_file), *sets], check=True)
    return out / "best"


def show(title: str, found: Sections) -> None:
    print(f"\n{title}")
    for name, one in found.items():
        print(one.line(name), flush=True)


def qualify(
    bench: Bench, run_file: Path, procedures: tuple[str, str], description: str | None
) -> None:
    """Run the check and print its figures; exit with 1 if the world does not qualify."""
    module = f"recipes.{bench.world}.qualify"
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--policy", type=Path, default=None, help="default: the bundled one")
    parser.add_argument("--out", type=Path, default=Path(f"runs/qualify-{bench.world}"))
    parser.add_argument("--questions", type=int, default=60, help="for each request of the bank")
    parser.add_argument("--seed", type=int, default=100, help="not one of a suite's")
    parser.add_argument("--set", action="append", default=[], help="a field of the training run")
    given = parser.parse_args()
    torch.set_num_threads(1)
    start = given.policy or Path(policy_path(f"bundled:{bench.world}"))

    def scored(title: str, folder: Path) -> Sections:
        found = bench.by_section(bench.policy(folder), given.questions)
        show(title, found)
        return found

    def trained(name: str, instruction: str) -> Path:
        return train(run_file, start, given.out / name, instruction, given.seed, given.set)

    before = scored("initial policy, sampled", start)
    first = max(procedures, key=lambda name: before[name].score)
    request = bench.instructed(read_bank(bench.bank)[first][0], 0)
    under = bench.figure(bench.policy(start), [request], UNDER)
    print(under.line("under the request"), flush=True)
    after = scored(f"after static GRPO under {request!r}", trained("best-first", request))
    static = scored(
        "after static GRPO under the initial instruction", trained("static", bench.initial)
    )
    found = checks(procedures, before, under, after, static)
    print()
    for text, holds in found.items():
        print("yes" if holds else "NO ", text)
    sys.exit(not all(found.values()))
