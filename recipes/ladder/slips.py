"""Count how right answers of the last rung came about: `python -m recipes.ladder.slips`.

A forgotten carry and the forgotten borrow cancel there. The initial policy answers 400 problems twice, asked
for a line per number.
"""

from pathlib import Path

import torch

from cotune.policy.policy_files import policy_path
from cotune.types import Assignment, Prompt
from cotune.worlds.ladder import RUNGS
from recipes.ladder.measure import policy
from recipes.ladder.phrases import INITIAL


def main() -> None:
    torch.set_num_threads(1)
    coordinator = policy(Path(policy_path("bundled:ladder")), seed=5, test=1000)
    last = [t for t in coordinator.environment.tasks("test") if t.stratum == RUNGS[3]][:400]
    prompt = Prompt(f"{INITIAL} Write a line for every number.")
    done = coordinator.rollout(
        [Assignment(task, prompt, prompt, "", i) for i, task in enumerate(last * 2)],
        purpose="evaluate",
    )
    marks = [(t.own_text.count(" up "), t.own_text.count(" down ")) for t in done if t.reward == 1]
    print(
        f"{len(done)} answers, {len(marks)} right: {marks.count((5, 1))} with every carry and the "
        f"borrow, {marks.count((4, 0))} by cancelling"
    )


if __name__ == "__main__":
    main()
