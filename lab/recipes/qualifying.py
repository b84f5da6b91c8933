"""Check that a world can tell joint training from staged; shared by the worlds' `qualify`.

No joint method runs here, only static GRPO. The bank of requests is scored under the initial policy. The
policy is then trained under the first request of the section that is best at first, then under that of the
section that is best by then, and so on; after each training the bank is scored again. Separately, the initial
policy is trained under the initial instruction. The world qualifies if

- each way is the best in its turn, by more than two standard errors;
- the ways after it were below 0.1 % of the rollouts under the instruction for it;
- opposites score below the initial instruction, off-topic requests as it does within two standard errors;
- training under the initial instruction does not find the ways.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from cotune.policy.policy_files import policy_path
from recipes.measuring import Bench, Figure, read_bank

UNDER = 4000
"""Rollouts under the request of a training: 0.1 % of them are 4."""
FOUND = 0.5
"""Score that training under the initial instruction must stay below."""

Sections = dict[str, Figure]


def apart(a: Figure, b: Figure) -> float:
    """Return how many standard errors the first score is above the second."""
    error = math.sqrt(sum(f.score * (1 - f.score) / f.n for f in (a, b)))
    return (a.score - b.score) / max(error, 1e-9)


def checks(
    ways: Sequence[str], scores: Sequence[Sections], under: Sequence[Figure], static: Sections
) -> dict[str, bool]:
    """Return what must hold for the world, in words with figures, and whether it does.

    Args:
        ways: in the order in which they become the best; each is the name of a section and of a way.
        scores: by section, of the initial policy and after each training.
        under: before each training, under the request of that training.
        static: by section, after training under the initial instruction.
    """
    found: dict[str, bool] = {}
    for number, (way, now) in enumerate(zip(ways, scores, strict=True)):
        lead = min(apart(now[way], now[other]) for other in ways if other != way)
        when = f"after {number} times GRPO" if number else "at first"
        found[f"{way} is best {when} by {lead:.1f} standard errors"] = lead > 2
        if later := ways[number + 1 :]:
            rare = max(under[number].ways[other] for other in later)
            found[f"{' or '.join(later)} is {rare:.3%} of the rollouts under {way}"] = rare < 0.001
    before = scores[0]
    opposite = apart(before["initial"], before["opposite"])
    neutral = apart(before["initial"], before["off-topic"])
    return found | {
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


def qualify(bench: Bench, ways: Sequence[str]) -> None:
    """Run the check and print its figures; exit with 1 if the world does not qualify."""
    parser = argparse.ArgumentParser(
        prog=f"python -m recipes.{bench.world}.qualify",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--policy", type=Path, default=None, help="default: the bundled one")
    parser.add_argument("--out", type=Path, default=Path(f"runs/qualify-{bench.world}"))
    parser.add_argument("--questions", type=int, default=60, help="for each request of the bank")
    parser.add_argument("--seed", type=int, default=100, help="not one of a suite's")
    parser.add_argument("--set", action="append", default=[], help="a field of the training run")
    given = parser.parse_args()
    torch.set_num_threads(1)
    run_file = Path(__file__).parents[1] / "configs" / f"{bench.world}-inspo.yaml"
    start = given.policy or Path(policy_path(f"bundled:{bench.world}"))

    def scored(title: str, folder: Path) -> Sections:
        found = bench.by_section(bench.policy(folder), given.questions)
        print(f"\n{title}")
        for name, one in found.items():
            print(one.line(name), flush=True)
        return found

    folder = start
    scores, under = [scored("initial policy, sampled", start)], list[Figure]()
    for number, way in enumerate(ways[:-1]):
        request = bench.instructed(read_bank(bench.bank)[way][0], 0)
        under.append(bench.figure(bench.policy(folder), [request], UNDER))
        print(under[-1].line(f"under {request!r}"), flush=True)
        out = given.out / way.replace(" ", "-")
        folder = train(run_file, folder, out, request, given.seed + number, given.set)
        scores.append(scored(f"after static GRPO under {request!r}", folder))
    folder = train(run_file, start, given.out / "static", bench.initial, given.seed, given.set)
    static = scored("after static GRPO under the initial instruction", folder)
    found = checks(ways, scores, under, static)
    print()
    for text, holds in found.items():
        print("yes" if holds else "NO ", text)
    sys.exit(not all(found.values()))
