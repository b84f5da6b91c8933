"""INSPO, P²O and both composed on the bundled world `geo`, at equal numbers of policy rollouts.

    python benchmarks/composed.py --out runs/composed              # three seeds, all arms

Every arm pays for its rollouts out of one budget: training's, verification's and GEPA's. "prompted"
is held-out exact match under the arm's best instruction, "plain" under the initial one. Finished
runs in the folder are kept. Two runs at a time, one thread each.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from cotune.experiments.arms import Arm
from cotune.experiments.suite import (
    STATIC,
    figures_of,
    interval,
    merged,
    paid,
    rewards,
    run_missing,
    shipped,
    slug,
)

console = Console(width=150)
BUDGET = 6912
WORLD = {
    "environment": {"train": 240},
    "training": {"group_size": 6, "micro_batch_size": 48, "steps": 48, "rollout_budget": BUDGET},
}
P2O = {"kind": "p2o", "hints": {"hard_set_min_count": 24, "dev_size": 32, "budget": 400, "beam": 4}}
INSPO = {
    "kind": "inspo",
    "prune_every": 4,
    "evolve_every": 6,
    "evolve_until": 18,
    "verification_tasks": 24,
}
NO_MASK = {"distillation": {"ratio": "original"}}
COMPOSED = {"kind": "inspo+p2o", "inspo": INSPO, "p2o": P2O}
ARMS: dict[str, dict[str, Any]] = {
    "GRPO": STATIC,
    "INSPO": {"strategy": INSPO},
    "P2O": {"strategy": P2O},
    "P2O, no mask": {"strategy": {**P2O, **NO_MASK}},
    "composed": {"strategy": COMPOSED},
    "composed, half distilled": {"strategy": {**COMPOSED, "distil_instruction": 0.5}},
    "composed, half distilled, no mask": {
        "strategy": {**COMPOSED, "distil_instruction": 0.5, "p2o": {**P2O, **NO_MASK}}
    },
}


def arm(out: Path, name: str, seed: int, change: Mapping[str, Any]) -> Arm:
    fixed = {"name": name, "seed": seed, "output": str(out / f"{slug(name)}-seed{seed}")}
    return Arm(name, shipped("demo.yaml", merged(merged(fixed, WORLD), change)))


def report(groups: Mapping[str, Sequence[Arm]]) -> None:
    """Prints both scores of every arm."""
    table = Table(show_edge=False, pad_edge=False)
    for column in ("arm", "prompted", "95 %", "seeds", "plain", "seeds ", "paid", "verify", "GEPA"):
        table.add_column(column, justify="left" if column == "arm" else "right", no_wrap=True)
    table.add_column("s", justify="right")
    for name, arms in groups.items():
        samples, figures = np.stack([rewards(a) for a in arms]), [figures_of(a) for a in arms]
        low, high = interval(samples)
        # A run whose best instruction is the initial one is evaluated under it once.
        plain = [
            f["em"] if f["em_initial_instruction"] is None else f["em_initial_instruction"]
            for f in figures
        ]
        spent = [f["policy_rollouts"] for f in figures]
        table.add_row(
            name,
            f"{samples.mean():.3f}",
            f"({low:.2f}, {high:.2f})",
            " ".join(f"{row.mean():.2f}" for row in samples),
            f"{np.mean(plain):.3f}",
            " ".join(f"{value:.2f}" for value in plain),
            f"{np.mean([paid(f) for f in figures]):.0f}",
            f"{np.mean([s.get('verify', 0) for s in spent]):.0f}",
            f"{np.mean([s.get('evolve', 0) for s in spent]):.0f}",
            f"{np.mean([f['seconds'] for f in figures]):.0f}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    groups = {name: [arm(args.out, name, s, ARMS[name]) for s in args.seeds] for name in args.arms}
    run_missing([one for arms in groups.values() for one in arms], console)
    report(groups)


if __name__ == "__main__":
    main()
