"""How often a trial errs on real rewards, and how many groups it needs: `python -m cotune_lab.trial_error RUN…`.

The rollouts of a stored training group share one instruction. Split into halves at random, they are a trial of an
instruction against itself: each verdict of the test is an error. To see how often a lead is found, a share of the failed
rollouts of one half is then made right.
"""

import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cotune import RunDir
from cotune.methods.inspo.population import Population
from cotune.methods.inspo.trial import Contestant
from cotune.types import Instruction

_TRIALS = 400
_PARENT = Instruction("i0", "")


def groups_of(run: RunDir) -> list[list[float]]:
    """Return the rewards of each stored training group that was sampled under one instruction."""
    groups: defaultdict[tuple[int, int], list[dict[Any, Any]]] = defaultdict(list)
    for step in [step for step, purpose in run.trajectory_files() if purpose == "train"]:
        for row in run.read_trajectories(step, "train"):
            groups[step, row["group"]].append(row)
    return [
        [row["reward"] for row in rows]
        for rows in groups.values()
        if len({row["instruction"] for row in rows}) == 1
    ]


def try_once(
    groups: Sequence[Sequence[float]], most: int, lead: float, rng: random.Random
) -> tuple[str, int]:
    """Return the verdict of the test on drawn groups, "undecided" without one, and the groups that it needed."""
    member = Population(5, 0.2).new_member(Instruction("i1", ""))
    contestant = Contestant(member, _PARENT)
    for count in range(1, most + 1):
        group = rng.choice(groups)
        rewards = rng.sample(group, k=len(group))
        half = len(rewards) // 2
        raised = [1.0 if rng.random() < lead else reward for reward in rewards[:half]]
        spread = max(*raised, *rewards[half:]) - min(*raised, *rewards[half:])
        means = (sum(raised) / half, sum(rewards[half:]) / (len(rewards) - half))
        contestant.groups.append((*means, spread))
        verdict = contestant.verdict(most + 1)
        if verdict is not None:
            return "rejected" if verdict else "accepted", count
    return "undecided", most


def main(folders: Sequence[str]) -> None:
    groups = [group for folder in folders for group in groups_of(RunDir.open(Path(folder)))]
    if not groups:
        sys.exit("cotune_lab.trial_error: no stored group was sampled under one instruction")
    sizes = sorted({len(group) for group in groups})
    print(f"{len(groups)} groups of {', '.join(map(str, sizes))}")
    print("lead  groups  accepted  rejected  undecided  groups needed")
    for lead in (0.0, 0.1, 0.2, 0.4):
        for most in (12, 24, 48):
            rng = random.Random(f"{lead}/{most}")
            verdicts, counts = zip(
                *(try_once(groups, most, lead, rng) for _ in range(_TRIALS)), strict=True
            )
            shares = [
                verdicts.count(name) / _TRIALS for name in ("accepted", "rejected", "undecided")
            ]
            row = "  ".join(f"{share:8.3f}" for share in shares)
            print(f"{lead:4.1f}  {most:6}  {row}  {sum(counts) / _TRIALS:13.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
