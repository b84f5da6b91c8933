"""Measure a policy of `ladder` under banks of requests: scores, and which way it answers."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

from cotune.policy.local_policy import local_coordinator
from cotune.rollout.coordinator import Coordinator, RolloutSettings
from cotune.run.scores import wilson
from cotune.types import Assignment, Limits, Prompt, Trajectory
from cotune.worlds.ladder import RUNGS, WRITTEN, LadderEnvironment, LadderOptions, Way
from recipes.ladder.phrases import INITIAL

BANK = Path(__file__).with_name("bank.txt")
TEMPERATURE = 1.0
LIMITS = Limits(
    turns=1, turn_tokens=112, observation_tokens=1, trajectory_tokens=114, prompt_tokens=192
)
WAYS = (*(way.value for way in Way), "other")


@cache
def bank(path: Path = BANK) -> dict[str, tuple[str, ...]]:
    """Read the requests of a bank by section; lines that begin with # are comments."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line.strip() and not line.startswith("#"):
            found.setdefault(section, []).append(line.strip())
    return {name: tuple(lines) for name, lines in found.items()}


def way_of(trajectory: Trajectory) -> str:
    """Return the way of a response."""
    text = trajectory.own_text.lstrip()
    if text.startswith("\\boxed"):
        return Way.AT_ONCE
    return next((w.value for w in WRITTEN if text.startswith(f"{w.capitalize()}:")), WAYS[-1])


@dataclass(frozen=True)
class Figure:
    """What a set of rollouts shows.

    Attributes:
        score: share of right answers.
        ways: share of each way.
        by_rung: score on each rung.
    """

    score: float
    n: int
    ways: dict[str, float]
    by_rung: dict[str, float]

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.score, self.n)

    def line(self, name: str) -> str:
        low, high = self.interval
        ways = "  ".join(f"{way} {share:.4f}" for way, share in self.ways.items())
        rungs = " / ".join(f"{value:.2f}" for value in self.by_rung.values())
        return f"{name:22} {self.score:.3f} ({low:.3f} to {high:.3f}, n = {self.n:,})  {ways}  by rung {rungs}"


def policy(folder: Path, seed: int = 0, test: int = 400) -> Coordinator:
    """Return a coordinator that samples from the policy in a folder, on test problems."""
    environment = LadderEnvironment(LadderOptions(train=1, validation=1, test=test, seed=seed))
    return local_coordinator(
        folder, environment, INITIAL, RolloutSettings(LIMITS, TEMPERATURE, seed)
    )


def instructed(sentence: str, index: int) -> str:
    """Put a request before or after the initial instruction, in turn."""
    return f"{sentence} {INITIAL}" if index % 2 else f"{INITIAL} {sentence}"


def figure(
    coordinator: Coordinator, instructions: Sequence[str], problems: int, greedy: bool = False
) -> Figure:
    """Answer `problems` problems under each instruction, drawn for each of them."""
    tasks, rng = list(coordinator.environment.tasks("test")), random.Random("ladder/measure")
    assignments: list[Assignment] = []
    for text in instructions:
        # Every prefix of the test split has the mix of rungs.
        start = rng.randrange(len(tasks))
        drawn = [tasks[(start + i) % len(tasks)] for i in range(problems)]
        prompt = Prompt(text)
        assignments += [
            Assignment(task, prompt, prompt, "", len(assignments) + i)
            for i, task in enumerate(drawn)
        ]
    done = coordinator.rollout(assignments, purpose="evaluate", greedy=greedy)
    return Figure(
        fmean(t.reward for t in done),
        len(done),
        {way: sum(way_of(t) == way for t in done) / len(done) for way in WAYS},
        {rung: fmean(t.reward for t in done if t.task.stratum == rung) for rung in RUNGS},
    )


def by_section(
    coordinator: Coordinator, problems: int = 40, greedy: bool = False
) -> dict[str, Figure]:
    """Return the figures under the initial instruction and under each section of the bank."""
    found = {"initial": figure(coordinator, [INITIAL], 24 * problems, greedy)}
    for name, lines in bank().items():
        instructions = [instructed(line, i) for i, line in enumerate(lines)]
        found[name] = figure(coordinator, instructions, problems, greedy)
    return found


def main() -> None:
    """Print the figures of a policy: python -m recipes.ladder.measure FOLDER."""
    import sys

    import torch

    torch.set_num_threads(1)
    coordinator = policy(Path(sys.argv[1]))
    for greedy in (False, True):
        print("greedy" if greedy else "sampled")
        for name, found in by_section(coordinator, greedy=greedy).items():
            print(found.line(name), flush=True)


if __name__ == "__main__":
    main()
