"""Measure a policy of `ladder` under the bank of requests: scores, and which way it answers."""

from pathlib import Path

from cotune import Limits, Trajectory
from cotune.environments.single_turn import INITIAL_INSTRUCTION
from cotune.worlds.ladder import RUNGS, WRITTEN, LadderEnvironment, LadderOptions, Way
from recipes.measuring import Bench, read_bank

LIMITS = Limits(
    turns=1, turn_tokens=120, observation_tokens=1, trajectory_tokens=122, prompt_tokens=224
)
WAYS = (*(way.value for way in Way), "other")


def way_of(trajectory: Trajectory) -> str:
    """Return the way of a response."""
    text = trajectory.own_text.lstrip()
    if text.startswith("\\boxed"):
        return Way.AT_ONCE
    return next((w.value for w in WRITTEN if text.startswith(f"{w.capitalize()}:")), WAYS[-1])


def environment(seed: int, test: int) -> LadderEnvironment:
    return LadderEnvironment(LadderOptions(train=1, validation=1, test=test, seed=seed))


BENCH = Bench(
    "ladder",
    INITIAL_INSTRUCTION,
    environment,
    LIMITS,
    WAYS,
    way_of,
    RUNGS,
    read_bank(Path(__file__).with_name("bank.txt")),
)
