"""Measure how much of a strategy has moved into the weights: long problems, no hint, temperature 1.

    cotune compare configs/suites/p2o-transfer-arithmetic.yaml
    python benchmarks/transfer.py runs/suites/p2o-transfer-arithmetic/*/seed-*/train

Prints how often long problems of the test split are solved, and how often the written procedure is used,
for the untrained policy of `arithmetic` and for the best policy of each run folder.
"""

import argparse
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from cotune.policy.local_policy import local_coordinator
from cotune.policy.policy_files import policy_path
from cotune.rollout.coordinator import RolloutSettings
from cotune.run.run_dir import RunDir
from cotune.types import Assignment, Prompt, Trajectory
from cotune.worlds.arithmetic import ArithmeticEnvironment, ArithmeticOptions

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `recipes`
from recipes.arithmetic.card import LIMITS, writes


def unprompted(folder: Path, kinds: tuple[str, ...], seed: int) -> list[Trajectory]:
    """Sample one rollout of each of 200 long test problems, without a hint."""
    options = ArithmeticOptions(
        train=1, validation=1, test=200, seed=seed, kinds=kinds, long_share=1.0
    )
    environment = ArithmeticEnvironment(options)
    prompt = Prompt(environment.initial_instruction)
    coordinator = local_coordinator(
        folder, environment, prompt.instruction, RolloutSettings(LIMITS, 1.0, seed)
    )
    tasks = environment.tasks("test")
    assignments = [Assignment(task, prompt, prompt, "i0", i) for i, task in enumerate(tasks)]
    return coordinator.rollout(assignments, purpose="evaluate")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", help="run folders on arithmetic")
    runs = parser.parse_args().runs
    torch.set_num_threads(1)
    configs = [RunDir.open(run).read_config() for run in runs]
    kinds = tuple(configs[0]["environment"]["kinds"])
    folders = {"before training": Path(policy_path("bundled:arithmetic"))}
    folders |= {c["name"]: run / "best" for run, c in zip(runs, configs, strict=True)}
    table = Table("weights", "writes a procedure", "solved", show_edge=False, pad_edge=False)
    for name, folder in folders.items():
        found = [t for seed in (5, 6, 7) for t in unprompted(folder, kinds, seed)]
        shares = (sum(map(writes, found)), sum(t.reward for t in found))
        table.add_row(name, *(f"{share / len(found):.1%}" for share in shares))
    Console().print(table)


if __name__ == "__main__":
    main()
