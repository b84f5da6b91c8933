"""Replay a run's verifications, to see what racing saves and how often it agrees with full verification.

    python benchmarks/racing.py runs/suites/ladder/inspo/seed-0/train

Every candidate that the run verified is verified again in full against its parent, on questions drawn for
each round, with the policy that the run began with and with the one that it kept. The recorded rewards are
then replayed with each kind of race.
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from cotune.config.build import run_environment
from cotune.config.resuming import recorded_config
from cotune.experiments.evaluate.run_policy import run_policy
from cotune.methods.inspo.inspo import InspoOptions
from cotune.methods.inspo.verification import Candidate, Race, accept, verify
from cotune.rollout.coordinator import Coordinator
from cotune.run.run_dir import RunDir
from cotune.types import Assignment, Instruction, Task, Trajectory

KINDS = ("instruction_born", "instruction_rejected")
RACES = {
    "full": Race(),
    "exact": Race("exact", 4),
    "racing, 0.05": Race("racing", 8),
    "racing, 0.1": Race("racing", 8, 0.1),
    "racing, 0.2": Race("racing", 8, 0.2),
    "racing, 0.5": Race("racing", 8, 0.5),
    "racing, 0.2, blocks of 4": Race("racing", 4, 0.2),
}


@dataclass(frozen=True)
class Round:
    """A round's candidates and their parent."""

    parent: Instruction
    candidates: tuple[Candidate, ...]


def rounds_of(events: Path) -> list[Round]:
    """Read the candidates that a run verified, by step and parent."""
    texts: dict[str, str] = {}
    found: dict[tuple[int, str], list[str]] = {}
    for line in events.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["kind"] == "instruction_born":
            texts[event["id"]] = event["text"]
        if event["kind"] in KINDS and event["score"] is not None:
            found.setdefault((event["step"], event["parent"]), []).append(event["text"])
    return [
        Round(
            Instruction("parent", texts[parent]),
            tuple(Candidate(f"c{i}", text, "parent", "recorded") for i, text in enumerate(row[:6])),
        )
        for (_, parent), row in found.items()
    ]


class Recorded:
    """Rolls out once, and answers from memory afterwards."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._known: dict[tuple[str, str], Trajectory] = {}

    def __call__(
        self, assignments: Sequence[Assignment], *, purpose: str, greedy: bool = False
    ) -> list[Trajectory]:
        keys = [(a.instruction_id, a.task.id) for a in assignments]
        new = [a for a, key in zip(assignments, keys, strict=True) if key not in self._known]
        done = self._coordinator.rollout(new, purpose="verify", greedy=greedy) if new else []
        for trajectory in done:
            one = trajectory.assignment
            self._known[one.instruction_id, one.task.id] = trajectory
        return [self._known[key] for key in keys]


def main() -> None:
    parser = argparse.ArgumentParser(description="Share of rollouts and of equal decisions.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--vacancies", type=int, default=6)
    parser.add_argument("--questions", type=int, help="default: the run's verification_tasks")
    given = parser.parse_args()
    torch.set_num_threads(1)
    run = RunDir.open(given.run)
    config = recorded_config(run)
    options = config.strategy
    if not isinstance(options, InspoOptions):
        parser.error(f"{given.run} is of strategy {options.kind}; expected inspo")
    environment = run_environment(config)
    tasks, rng = list(environment.tasks("train")), random.Random("racing")
    paid = dict.fromkeys(RACES, 0)
    equal = dict.fromkeys(RACES, 0)
    lost = dict.fromkeys(RACES, 0.0)
    count, size = 0, given.questions or options.verification_tasks
    for best in (None, run.best_path):
        coordinator = run_policy(config, environment, best=best)
        for one in rounds_of(given.run / "events.jsonl"):
            drawn: list[Task] = rng.sample(tasks, size)
            rollout = Recorded(coordinator)
            scores: dict[str, float] = {}
            taken: dict[str, set[str]] = {}
            for name, race in RACES.items():
                found, rollouts, _ = verify(
                    one.candidates, one.parent, drawn, rollout, race, given.vacancies
                )
                accepted, _ = accept(found, given.vacancies)
                taken[name] = {c.id for c in accepted}
                if name == "full":
                    scores = {c.id: c.gain for c in found}
                paid[name] += rollouts
                equal[name] += sum((i in taken[name]) == (i in taken["full"]) for i in scores)
                lost[name] += sum(abs(scores[i]) for i in taken[name] ^ taken["full"])
            count += len(one.candidates)
    print(f"{count} candidates on {size} questions each")
    print(
        "| race | rollouts | equal decisions | gain of one that differs |\n| --- | ---: | ---: | ---: |"
    )
    for name in RACES:
        differ = count - equal[name]
        mean = f"{lost[name] / differ:.3f}" if differ else "–"
        print(f"| {name} | {paid[name] / paid['full']:.0%} | {equal[name] / count:.1%} | {mean} |")


if __name__ == "__main__":
    main()
