"""P²O against GRPO on the bundled world `arithmetic`, at equal numbers of policy rollouts.

    python benchmarks/p2o.py --out runs/p2o/main                        # three seeds
    python benchmarks/p2o.py --out runs/p2o/held-back --kinds held-back
    python benchmarks/p2o.py --out runs/p2o/main --suite ablations --seeds 0
    python benchmarks/p2o.py --out runs/p2o/main --suite tuning
    python benchmarks/p2o.py --out runs/p2o/transfer --suite transfer

Every arm pays for its rollouts out of one budget: training's and GEPA's. All settings were chosen
on additions and multiplications (`--kinds tuned`); subtractions and word problems were held back.
Finished runs in the folder are kept. Two runs at a time, one thread each.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from cotune.coordinator import RolloutSettings
from cotune.engines.local_policy import local_coordinator
from cotune.environments.arithmetic import ArithmeticEnvironment, ArithmeticOptions
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
from cotune.policies import policy_path
from cotune.policies.arithmetic.card import LIMITS, writes
from cotune.records import Assignment, Prompt, Trajectory
from cotune.run_dir import RunDir

console = Console(width=170)
KINDS = {
    "tuned": ["addition", "multiplication"],
    "held-back": ["subtraction", "word problem"],
    "all": ["addition", "subtraction", "multiplication", "word problem"],
}
BUDGET = 6912
HALF = {"strategy": {"hinted_per_group": "half"}}
HARD = "long"  # how the hard strata begin


def ratio(name: str) -> dict[str, Any]:
    return {"strategy": {"distillation": {"ratio": name}}}


# Each method at the learning rate that was best for it on the tuned kinds.
GRPO = merged(STATIC, {"training": {"learning_rate": 8e-4}})
MAIN: dict[str, dict[str, Any]] = {
    "GRPO, lr 0.0008": GRPO,
    "GRPO, twice the rollouts": merged(GRPO, {"training": {"rollout_budget": 2 * BUDGET}}),
    "P2O, lr 0.0004": {},
    "P2O, half hinted": HALF,
}
ABLATIONS: dict[str, dict[str, Any]] = {
    "P2O, lr 0.0004": {},
    "no distillation": ratio("off"),
    "no mask": ratio("original"),
    "ratio to the hinted policy": ratio("hint"),
    "soft mask": {"strategy": {"distillation": {"soft": True}}},
    "one hint per group": {"strategy": {"same_hint": True}},
    "single-turn reflection": {"strategy": {"hints": {"reflection": "single_turn"}}},
    "tau 1": {"strategy": {"successes_below": 1}},
    "tau 4": {"strategy": {"successes_below": 4}},
    "random remedies": {"llm": {"remedies": "random"}},
    "all but one hinted": {"strategy": {"hinted_per_group": "all_but_one"}},
    "P2O, half hinted": HALF,
    "half hinted, judged plain": merged(HALF, {"strategy": {"judged_on": "plain"}}),
    "failed hinted dropped": {"strategy": {"distillation": {"drop_failed": True}}},
}
TUNING = {
    f"GRPO, lr {rate:g}": merged(STATIC, {"training": {"learning_rate": rate}})
    for rate in (1e-4, 2e-4, 4e-4, 6e-4, 8e-4, 1.1e-3, 1.6e-3)
} | {
    f"P2O, lr {rate:g}": {"training": {"learning_rate": rate}} for rate in (1e-4, 2e-4, 4e-4, 8e-4)
}
# The first epoch with hints, to its end: what it leaves in the weights is measured there.
AN_EPOCH_UNDER_HINTS = {"training": {"steps": 16}, "evaluation": {"before": False}}
TRANSFER = {
    "with distillation": AN_EPOCH_UNDER_HINTS,
    "without": merged(ratio("off"), AN_EPOCH_UNDER_HINTS),
}
SUITES = {"main": MAIN, "ablations": ABLATIONS, "tuning": TUNING, "transfer": TRANSFER}


def arm(out: Path, name: str, seed: int, kinds: Sequence[str], change: Mapping[str, Any]) -> Arm:
    folder = out / f"{slug(name)}-seed{seed}"
    fixed = {"name": name, "seed": seed, "output": str(folder)}
    world = {"environment": {"kinds": list(kinds), "seed": seed}}
    training = {"training": {"rollout_budget": BUDGET, "steps": 2 * BUDGET // 144}}
    changes = merged(merged(merged(fixed, world), training), change)
    return Arm(name, shipped("demo-p2o.yaml", changes))


def report_transfer(groups: Mapping[str, Sequence[Arm]], kinds: Sequence[str]) -> None:
    """Prints how often long problems are solved without a hint at temperature 1."""
    torch.set_num_threads(1)
    table = Table(show_edge=False, pad_edge=False)
    for column in ("weights", "writes a procedure", "solved"):
        table.add_column(column, justify="left" if column == "weights" else "right")
    folders = {"before training": Path(policy_path("bundled:arithmetic"))}
    folders |= {a.folder.name: a.folder / "best" for arms in groups.values() for a in arms}
    for name, folder in folders.items():
        found = [t for seed in (5, 6, 7) for t in unprompted(folder, kinds, seed)]
        shares = (sum(map(writes, found)), sum(t.reward for t in found))
        table.add_row(name, *(f"{share / len(found):.1%}" for share in shares))
    console.print(table)


def unprompted(folder: Path, kinds: Sequence[str], seed: int) -> list[Trajectory]:
    """One sampled rollout each of 200 long test problems without a hint."""
    options = ArithmeticOptions(
        train=1, validation=1, test=200, seed=seed, kinds=tuple(kinds), long_share=1.0
    )
    environment = ArithmeticEnvironment(options)
    prompt = Prompt(environment.initial_instruction)
    coordinator = local_coordinator(
        folder, environment, prompt.instruction, RolloutSettings(LIMITS, 1.0, seed)
    )
    tasks = environment.tasks("test")
    assignments = [Assignment(task, prompt, prompt, "i0", i) for i, task in enumerate(tasks)]
    return coordinator.rollout(assignments, purpose="evaluate")


def zero_advantage(one: Arm, name: str) -> float:
    """Mean share of groups without a gradient over the second half of the steps; nan for none."""
    rows = RunDir.open(one.folder).read_metrics()
    values = [row[name] for row in rows[len(rows) // 2 :] if name in row]
    return float(np.mean(values)) if values else float("nan")


def report(groups: Mapping[str, Sequence[Arm]], baseline: str) -> None:
    """Prints held-out accuracy without a hint, an arm a row."""
    table = Table(show_edge=False, pad_edge=False)
    columns = ("arm", "all", "hard", "95 %", "seeds", "gain, hard", "95 %", "before", "zero adv.")
    for column in (*columns, "of hinted", "steps", "paid", "GEPA", "s"):
        table.add_column(column, justify="left" if column == "arm" else "right", no_wrap=True)
    reference = np.stack([rewards(a, HARD) for a in groups[baseline]])
    for name, arms in groups.items():
        samples = np.stack([rewards(a, HARD) for a in arms])
        figures = [figures_of(a) for a in arms]
        gain = samples - reference[: len(samples)]
        before = [f["em_before_by_stratum"] for f in figures]
        hard = [np.mean([v for k, v in row.items() if k.startswith(HARD)]) for row in before]
        low, high = interval(samples)
        glow, ghigh = interval(gain)
        table.add_row(
            name,
            f"{np.mean([f['em'] for f in figures]):.3f}",
            f"{samples.mean():.3f}",
            f"({low:.2f}, {high:.2f})",
            " ".join(f"{row.mean():.2f}" for row in samples),
            f"{gain.mean():+.3f}",
            f"({glow:+.2f}, {ghigh:+.2f})",
            f"{np.mean(hard):.3f}",
            f"{np.mean([zero_advantage(a, 'zero_advantage_share') for a in arms]):.2f}",
            f"{np.mean([zero_advantage(a, 'zero_advantage_share_hinted') for a in arms]):.2f}",
            f"{np.mean([f['steps'] for f in figures]):.0f}",
            f"{np.mean([paid(f) for f in figures]):.0f}",
            f"{np.mean([f['policy_rollouts'].get('evolve', 0) for f in figures]):.0f}",
            f"{np.mean([f['seconds'] for f in figures]):.0f}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--suite", choices=SUITES, default="main")
    parser.add_argument("--kinds", choices=KINDS, default="tuned")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", help="by default all of the suite")
    parser.add_argument("--baseline", help="what gains are over; by default the first arm")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    groups = {
        name: [arm(args.out, name, seed, KINDS[args.kinds], change) for seed in args.seeds]
        for name, change in SUITES[args.suite].items()
        if args.arms is None or name in args.arms
    }
    if not groups:
        parser.error(f"--arms: expected some of {', '.join(SUITES[args.suite])}")
    if args.baseline is not None and args.baseline not in groups:
        parser.error(f"--baseline: expected one of {', '.join(groups)}")
    run_missing([one for arms in groups.values() for one in arms], console)
    if args.suite == "transfer":
        report_transfer(groups, KINDS[args.kinds])
    else:
        report(groups, baseline=args.baseline or next(iter(groups)))


if __name__ == "__main__":
    main()
