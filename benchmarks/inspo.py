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
import shutil
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from cotune.config import RunConfig, dump_config, load_config
from cotune.experiments.arms import Arm, run_arms
from cotune.run_dir import RunDir, read_summary

console = Console(width=160)
# Share of the budget that "prompt first" spends on its instruction, with the policy frozen.
PROMPT_FIRST_SHARE = 0.25


def base(overrides: Mapping[str, Any]) -> RunConfig:
    """The demo's run file with changes; nested mappings are merged."""
    with resources.as_file(resources.files("cotune.experiments") / "demo.yaml") as file:
        plain = load_config(file).model_dump(mode="json")
        return load_config(file, merged(plain, overrides))


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(first)
    for key, value in second.items():
        old = result.get(key)
        nested = isinstance(old, dict) and isinstance(value, dict) and value.get("kind") != "static"
        result[key] = merged(old, value) if nested else value
    return result


STATIC = {"strategy": {"kind": "static"}, "llm": None}
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
    slug = name.replace(",", "").replace(" ", "-")
    folder = out / f"{slug}-seed{seed}"
    return Arm(name, base(merged({"name": name, "seed": seed, "output": str(folder)}, change)))


def run_missing(arms: Sequence[Arm]) -> None:
    """Runs the arms that have no summary yet, two at a time."""
    todo = []
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

    run_arms(todo, at_once=2, watch=watch, every=2.0)


def finished(one: Arm) -> bool:
    """Whether the folder holds this very run, to its end. Other weights ask for another --out."""
    if read_summary(one.folder) is None:
        return False
    return RunDir.open(one.folder).read_config() == dump_config(one.config)


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
    run_missing(first)
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


def figures_of(one: Arm) -> dict[str, Any]:
    summary = read_summary(one.folder)
    if summary is None:
        raise SystemExit(f"{one.folder} is not finished")
    return next(iter(summary["arms"].values()))


def paid(figures: Mapping[str, Any]) -> int:
    return sum(n for purpose, n in figures["policy_rollouts"].items() if purpose != "evaluate")


def rewards(one: Arm) -> np.ndarray:
    """Held-out rewards after training, in the order of the test questions."""
    run = RunDir.open(one.folder)
    step = next(e["step"] for e in run.read_events() if e.get("when") == "after")
    rows = run.read_trajectories(step, "evaluate_after")
    return np.array([row["reward"] for row in rows])


def last_rewards(one: Arm) -> float:
    """Mean training reward of the last three steps, which is sampled at temperature 1."""
    return float(np.mean([row["reward_mean"] for row in one.metrics()[-3:]]))


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
    run_missing([one for arms in groups.values() for one in arms])
    before: dict[str, list[Arm]] = {}
    if args.suite == "main":
        staged = "prompt first, then GRPO"
        groups[staged], before[staged] = prompt_first(args.out, args.seeds)
        groups["GRPO under the best instruction"] = ceiling(args.out, args.seeds)
        run_missing([one for arms in groups.values() for one in arms])
    report(groups, baseline=next(iter(groups)), before=before)
    best = {
        name: [figures_of(a)["best_instruction"] for a in arms] for name, arms in groups.items()
    }
    (args.out / f"{args.suite}-best-instructions.json").write_text(json.dumps(best, indent=1))


if __name__ == "__main__":
    main()
