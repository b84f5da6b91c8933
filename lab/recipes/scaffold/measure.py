"""Measure a policy of `scaffold` under the bank of requests: scores, and which way it answers."""

from pathlib import Path

from cotune import Limits, Trajectory
from cotune_lab.worlds.geo import STRATA
from cotune_lab.worlds.scaffold import (
    INITIAL_INSTRUCTION,
    TURNS,
    ScaffoldEnvironment,
    ScaffoldOptions,
)
from recipes.measuring import Bench, read_bank
from recipes.scaffold.demonstrations import LEADS

LIMITS = Limits(
    turns=TURNS, turn_tokens=48, observation_tokens=80, trajectory_tokens=448, prompt_tokens=192
)
WAYS = ("no search", "whole question", "twice", "once", "other")


def way_of(trajectory: Trajectory) -> str:
    """Return the way of a rollout; "other" if it checks only some of its hops or fits no way."""
    starts = [turn.text.lstrip().partition(":")[0] for turn in trajectory.turns]
    leads = [start for start in starts if start in LEADS]
    if not leads:
        first = trajectory.turns[0].text.lstrip() if trajectory.turns else ""
        ways = {"<answer": "no search", "<search": "whole question"}
        return ways.get(first[: len("<answer")], "other")
    if leads == [LEADS[0]] * len(leads):
        return "once"
    # If the fifth turn is a search, it is a first search for which no turn was left to check it.
    expected = [LEADS[i % 2] for i in range(len(leads))]
    return "twice" if leads == expected and len(leads) % 2 == (len(leads) == TURNS) else "other"


def environment(seed: int, test: int) -> ScaffoldEnvironment:
    return ScaffoldEnvironment(ScaffoldOptions(train=1, validation=1, test=test, seed=seed))


BENCH = Bench(
    "scaffold",
    INITIAL_INSTRUCTION,
    environment,
    LIMITS,
    WAYS,
    way_of,
    tuple(STRATA.values()),
    read_bank(Path(__file__).with_name("bank.txt")),
)
