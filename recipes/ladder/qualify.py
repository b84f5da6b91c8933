"""Check that the world `ladder` can tell joint training from staged: `python -m recipes.ladder.qualify`.

No joint method runs here, static GRPO alone. The bank of requests is scored under the initial policy. The
policy is then trained under the first request of the best section and, from the start again, under the initial
one, and the bank is scored again. The world qualifies if

- the best way changes by training under the first best, by more than two standard errors;
- the new best way was below 0.1 % of the rollouts under the first best instruction;
- opposites score below the initial instruction, off-topic requests as it does within two standard errors;
- training under the initial instruction does not find the ways.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import torch

from cotune.policy.policy_files import policy_path
from recipes.ladder.measure import Figure, bank, by_section, figure, instructed, policy
from recipes.ladder.phrases import INITIAL

RUN_FILE = Path(__file__).parents[2] / "configs" / "ladder-inspo.yaml"
PROCEDURES = ("together", "one by one")


def standard_error(a: Figure, b: Figure) -> float:
    """Return the standard error of the difference of two shares."""
    return math.sqrt(sum(f.score * (1 - f.score) / f.n for f in (a, b)))


def apart(a: Figure, b: Figure) -> float:
    """Return how many standard errors the first score is above the second."""
    return (a.score - b.score) / max(standard_error(a, b), 1e-9)


def train(folder: Path, out: Path, instruction: str, seed: int, changes: list[str]) -> Path:
    """Train by static GRPO under an instruction; return the folder of the last policy that is kept."""
    fields = [
        f"policy.path={folder}", f"output={out}", f"seed={seed}", "strategy={kind: static}",
        f"instruction.text={json.dumps(instruction)}", *changes,
    ]  # fmt: skip
    sets = [part for field in fields for part in ("--set", field)]
    subprocess.run([sys.executable, "-m", "cotune", "train", str(RUN_FILE), *sets], check=True)
    return out / "best"


def show(title: str, found: dict[str, Figure]) -> None:
    print(f"\n{title}")
    for name, one in found.items():
        print(one.line(name), flush=True)


def main() -> None:
    """Run the check and print its figures; exit with 1 if the world does not qualify."""
    parser = argparse.ArgumentParser(prog="python -m recipes.ladder.qualify", description=__doc__)
    parser.add_argument("--policy", type=Path, default=Path(policy_path("bundled:ladder")))
    parser.add_argument("--out", type=Path, default=Path("runs/qualify-ladder"))
    parser.add_argument("--problems", type=int, default=60, help="for each request of the bank")
    parser.add_argument("--seed", type=int, default=100, help="not one of a suite's")
    parser.add_argument("--set", action="append", default=[], help="a field of the training run")
    given = parser.parse_args()
    torch.set_num_threads(1)
    before = by_section(policy(given.policy), given.problems)
    show("initial policy, sampled", before)
    first, other = sorted(PROCEDURES, key=lambda name: -before[name].score)
    request = instructed(bank()[first][0], 0)
    under = figure(policy(given.policy), [request], 4000)
    print(under.line("under the request"))
    after = by_section(
        policy(train(given.policy, given.out / "best-first", request, given.seed, given.set)),
        given.problems,
    )
    show(f"after static GRPO under {request!r}", after)
    static = by_section(
        policy(train(given.policy, given.out / "static", INITIAL, given.seed, given.set)),
        given.problems,
    )
    show("after static GRPO under the initial instruction", static)
    flipped, opposite = (
        apart(after[other], after[first]),
        apart(before["initial"], before["opposite"]),
    )
    checks = {
        f"{first} is best at first by {apart(before[first], before[other]):.1f} standard errors": (
            apart(before[first], before[other]) > 2
        ),
        f"{other} is best afterwards by {flipped:.1f} standard errors": flipped > 2,
        f"{other} is {under.ways[other]:.2%} of the rollouts under the first": under.ways[other]
        < 0.001,
        f"opposites are {opposite:.1f} standard errors below the initial instruction": opposite > 2,
        f"off-topic is within 2: {apart(before['initial'], before['off-topic']):.1f}": (
            abs(apart(before["initial"], before["off-topic"])) <= 2
        ),
        f"static GRPO ends at {static['initial'].score:.3f}": static["initial"].score < 0.5,
    }
    print()
    for text, holds in checks.items():
        print("yes" if holds else "NO ", text)
    sys.exit(not all(checks.values()))


if __name__ == "__main__":
    main()
