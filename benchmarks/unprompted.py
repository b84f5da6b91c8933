"""Measure how often the bundled policy looks up one entity at a time without being asked to.

    python benchmarks/unprompted.py

Samples the initial instruction on training questions of two and three hops, at temperature 1.
"""

import argparse
import re

import torch

from cotune.policy.local_policy import local_coordinator
from cotune.policy.policy_files import policy_path
from cotune.rollout.coordinator import RolloutSettings
from cotune.types import Assignment, Limits, Prompt, Trajectory
from cotune.worlds.geo import GeoEnvironment, GeoOptions

LIMITS = Limits(turn_tokens=64, observation_tokens=200, trajectory_tokens=640, prompt_tokens=384)


def searched_one_entity(trajectory: Trajectory) -> bool:
    """Return whether the first search names an entity instead of repeating the question."""
    query = re.search(r"<search>(.*?)</search>", trajectory.turns[0].text)
    return query is not None and " of " not in query[1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Share of multi-hop episodes that decompose.")
    parser.add_argument("--policy", default="bundled:geo")
    parser.add_argument("--questions", type=int, default=600)
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    mix = {2: 1.0, 3: 1.0}
    environment = GeoEnvironment(GeoOptions(train=args.questions, mix=mix))
    instruction = environment.initial_instruction
    settings = RolloutSettings(LIMITS, 1.0, args.seed)
    coordinator = local_coordinator(policy_path(args.policy), environment, instruction, settings)
    prompt = Prompt(instruction)
    assignments = [
        Assignment(task, prompt, prompt, "i0", group)
        for group, task in enumerate(environment.tasks("train"))
        for _ in range(2)
    ]
    found = coordinator.rollout(assignments, purpose="verify")
    count = sum(map(searched_one_entity, found))
    print(f"{count} of {len(found)} episodes begin with a search for one entity")


if __name__ == "__main__":
    main()
