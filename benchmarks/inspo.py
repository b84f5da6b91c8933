"""INSPO against its baselines, controls and ablations on the bundled world.

    python benchmarks/inspo.py --out runs/bench                       # three seeds, all arms
    python benchmarks/inspo.py --out runs/bench --suite ablations --seeds 0
    python benchmarks/inspo.py --out runs/tune --suite tuning --seeds 0

Every arm pays for its rollouts out of the same budget (training and verification). Finished runs
in the folder are kept, so an interrupted benchmark goes on where it was. Two runs at a time, one
thread each.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from cotune.config import RunConfig
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

console = Console(width=160)
# Share of the budget that "prompt first" spends on its instruction, with the policy frozen.
PROMPT_FIRST_SHARE = 0.25


def base(overrides: Mapping[str, Any]) -> RunConfig:
    """The demo's run file with changes."""
    return shipped("demo.yaml", overrides)


ARMS: dict[str, dict[str, Any]] = {
    "static": STATIC,
    "inspo": {},
    "inspo, random remedies": {"llm": {"remedies": "random"}},
}
ABLATIONS: dict[str, dict[str, Any]] = {
    "constant population": {"strategy": {"prune_every": 0, "evolve_every": 0}},
    "prune and expand": {"strategy": {"verify": False}},
    "inspo": {},
    "paraphrase": {"strategy": {"proposer": "paraphrase"}},
    "history": {"strategy": {"proposer": "history"}},
    "centred credit": {"strategy": {"credit": "centred"}},
}
TUNING = {
    f"static, lr {rate:g}": merged(STATIC, {"training": {"learning_rate": rate}})
    for rate in (1e-4, 2e-4, 4e-4, 8e-4)
}


def arm(out: Path, name: str, seed: int, change: Mapping[str, Any]) -> Arm:
    folder = out / f"{slug(name)}-seed{seed}"
    return Arm(name, base(merged({"name": name, "seed": seed, "output": str(folder)}, change)))


def prompt_first(out: Path, seeds: Sequence[int]) -> tuple[list[Arm], list[Arm]]:
    """GRPO with what is left of the budget under an instruction that was found first.

    Returns the runs of GRPO and those that found the instruction, with the policy frozen.
    """
    budget = base({}).training.rollout_budget or 0
    first = [
        arm(
            out,
            "prompt only",
            seed,
            {
                "strategy": {"prune_every": 2, "evolve_every": 2, "evolve_until": 8},
                "training": {
                    "rollout_budget": int(budget * PROMPT_FIRST_SHARE),
                    "engine_args": {"learning_rate": 0.0},
                },
            },
        )
        for seed in seeds
    ]
    run_missing(first, console)
    second = []
    for seed, one in zip(seeds, first, strict=True):
        figures = figures_of(one)
        left = budget - paid(figures)
        change = merged(
            STATIC,
            {"instruction": figures["best_instruction"], "training": {"rollout_budget": left}},
        )
        second.append(arm(out, "prompt first, then GRPO", seed, change))
    return second, first


def ceiling(out: Path, seeds: Sequence[int]) -> list[Arm]:
    """GRPO under INSPO's best instruction of the same seed from the first step on."""
    found = [figures_of(arm(out, "inspo", seed, {}))["best_instruction"] for seed in seeds]
    return [
        arm(out, "GRPO under the best instruction", seed, merged(STATIC, {"instruction": text}))
        for seed, text in zip(seeds, found, strict=True)
    ]


def last_rewards(one: Arm) -> float:
    """Mean training reward of the last three steps, which is sampled at temperature 1."""
    return float(np.mean([row["reward_mean"] for row in one.metrics()[-3:]]))


def report(
    groups: Mapping[str, Sequence[Arm]],
    baseline: str,
    before: Mapping[str, Sequence[Arm]] | None = None,
) -> None:
    """Prints exact match, its interval and the gain over the baseline, an arm a row.

    Args:
        before: runs that an arm built on, whose cost is its own, too.
    """
    table = Table(show_edge=False, pad_edge=False)
    for column in (
        "arm",
        "EM",
        "95 %",
        "seeds",
        "1 hop",
        "2",
        "3",
        "gain",
        "95 %",
        "sampled",
        "plain",
        "paid",
        "verify",
        "s",
    ):
        table.add_column(column, justify="left" if column == "arm" else "right", no_wrap=True)
    reference = np.stack([rewards(a) for a in groups[baseline]])
    for name, arms in groups.items():
        samples = np.stack([rewards(a) for a in arms])
        figures = [figures_of(a) for a in arms]
        low, high = interval(samples)
        gain = samples - reference[: len(samples)]
        glow, ghigh = interval(gain)
        strata = [
            np.mean([f["em_by_stratum"][s] for f in figures])
            for s in sorted(figures[0]["em_by_stratum"])
        ]
        bills = [*figures, *(figures_of(a) for a in (before or {}).get(name, ()))]
        spent = sum(paid(f) for f in bills) / len(arms)
        verify = sum(f["policy_rollouts"].get("verify", 0) for f in bills) / len(arms)
        table.add_row(
            name,
            f"{samples.mean():.3f}",
            f"[{low:.2f}, {high:.2f}]",
            " ".join(f"{row.mean():.2f}" for row in samples),
            *(f"{value:.2f}" for value in strata),
            f"{gain.mean():+.3f}",
            f"({glow:+.2f}, {ghigh:+.2f})",
            f"{np.mean([last_rewards(a) for a in arms]):.2f}",
            f"{np.mean([f['em_initial_instruction'] for f in figures]):.2f}",
            f"{spent:.0f}",
            f"{verify / spent:.1%}",
            f"{sum(f['seconds'] for f in bills) / len(arms):.0f}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--suite", choices=("main", "ablations", "tuning"), default="main")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    suite = {"main": ARMS, "ablations": ABLATIONS, "tuning": TUNING}[args.suite]
    groups = {name: [arm(args.out, name, s, c) for s in args.seeds] for name, c in suite.items()}
    run_missing([one for arms in groups.values() for one in arms], console)
    before: dict[str, list[Arm]] = {}
    if args.suite == "main":
        staged = "prompt first, then GRPO"
        groups[staged], before[staged] = prompt_first(args.out, args.seeds)
        groups["GRPO under the best instruction"] = ceiling(args.out, args.seeds)
        run_missing([one for arms in groups.values() for one in arms], console)
    report(groups, baseline=next(iter(groups)), before=before)
    best = {
        name: [figures_of(a)["best_instruction"] for a in arms] for name, arms in groups.items()
    }
    (args.out / f"{args.suite}-best-instructions.json").write_text(json.dumps(best, indent=1))


if __name__ == "__main__":
    main()
