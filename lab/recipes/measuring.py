"""Measure a bundled policy under a bank of requests: scores, and the way in which it answers.

A bank is a text file of requests in sections, written apart from the recipe's phrases.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

from cotune import Environment
from cotune.policy.local_policy import local_coordinator
from cotune.rollout.coordinator import Coordinator, RolloutSettings
from cotune.run.scores import wilson
from cotune.types import Assignment, Limits, Prompt, Trajectory

TEMPERATURE = 1.0
PLAIN = 24
"""The initial instruction gets this many times as many questions as a request."""


@dataclass(frozen=True)
class Bench:
    """The parts that the measurement of a world needs.

    Attributes:
        world: its name.
        initial: the initial instruction.
        environment: (seed, number of test questions) to the environment.
        limits: of an episode.
        ways: names of the ways to answer.
        way_of: the way of a rollout, one of `ways`.
        strata: of the test questions, in the order of the tables.
        requests: by section.
        temperature: of the sampled rollouts.
    """

    world: str
    initial: str
    environment: Callable[[int, int], Environment]
    limits: Limits
    ways: tuple[str, ...]
    way_of: Callable[[Trajectory], str]
    strata: tuple[str, ...]
    requests: Mapping[str, Sequence[str]]
    temperature: float = TEMPERATURE

    def policy(self, folder: Path, seed: int = 0, test: int = 400) -> Coordinator:
        """Return a coordinator that samples from the policy in a folder, on test questions."""
        settings = RolloutSettings(self.limits, self.temperature, seed)
        return local_coordinator(folder, self.environment(seed, test), settings)

    def instructed(self, sentence: str, index: int) -> str:
        """Put a request before or after the initial instruction, in turn."""
        return f"{sentence} {self.initial}" if index % 2 else f"{self.initial} {sentence}"

    def figure(
        self,
        coordinator: Coordinator,
        instructions: Sequence[str],
        questions: int,
        greedy: bool = False,
    ) -> "Figure":
        """Answer `questions` test questions under each instruction, drawn for each of them.

        Greedily each question once at most: the answer would be the same.
        """
        tasks = list(coordinator.environment.tasks("test"))
        questions = min(questions, len(tasks)) if greedy else questions
        rng = random.Random(f"{self.world}/measure")
        assignments: list[Assignment] = []
        for text in instructions:
            # Every stretch of the test split has about the mix of strata.
            start, prompt = rng.randrange(len(tasks)), Prompt(text)
            for i in range(questions):
                task = tasks[(start + i) % len(tasks)]
                assignments.append(Assignment(task, prompt, prompt, "", len(assignments)))
        done = coordinator.rollout(assignments, purpose="evaluate", greedy=greedy)
        ways = [self.way_of(t) for t in done]
        return Figure(
            fmean(t.reward for t in done),
            len(done),
            {way: ways.count(way) / len(done) for way in self.ways},
            {s: fmean([t.reward for t in done if t.task.stratum == s] or [0]) for s in self.strata},
        )

    def by_section(
        self, coordinator: Coordinator, questions: int = 40, greedy: bool = False
    ) -> "dict[str, Figure]":
        """Return the figures under the initial instruction and under each section of the bank."""
        figures = {"initial": self.figure(coordinator, [self.initial], PLAIN * questions, greedy)}
        for name, lines in self.requests.items():
            texts = [self.instructed(line, i) for i, line in enumerate(lines)]
            figures[name] = self.figure(coordinator, texts, questions, greedy)
        return figures


@cache
def read_bank(path: Path) -> dict[str, tuple[str, ...]]:
    """Read the requests of a bank by section; lines that begin with # are comments."""
    sections: dict[str, list[str]] = {}
    section = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line.strip() and not line.startswith("#"):
            sections.setdefault(section, []).append(line.strip())
    return {name: tuple(lines) for name, lines in sections.items()}


@dataclass(frozen=True)
class Figure:
    """The figures of a set of rollouts.

    Attributes:
        score: share of right answers.
        ways: share of each way.
        by_stratum: score on each stratum.
    """

    score: float
    n: int
    ways: dict[str, float]
    by_stratum: dict[str, float]

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.score, self.n)

    def line(self, name: str) -> str:
        """Return the figure as a line of text."""
        low, high = self.interval
        ways = "  ".join(f"{way} {share:.4f}" for way, share in self.ways.items())
        strata = " / ".join(f"{value:.2f}" for value in self.by_stratum.values())
        return f"{name:22} {self.score:.3f} ({low:.3f} to {high:.3f}, n = {self.n:,})  {ways}  by stratum {strata}"


def print_sections(bench: Bench, folder: Path) -> None:
    """Print the figures of the policy in a folder, sampled and greedy."""
    coordinator = bench.policy(folder)
    for greedy in (False, True):
        print("greedy" if greedy else "sampled")
        for name, figure in bench.by_section(coordinator, greedy=greedy).items():
            print(figure.line(name), flush=True)
