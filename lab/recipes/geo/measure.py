"""Measure a policy of `geo` under the offline rules' sentences: scores, and how often it looks up one entity."""

from cotune import Limits, Trajectory
from cotune_lab.worlds.geo import INITIAL_INSTRUCTION, STRATA, GeoEnvironment, GeoOptions
from cotune_lab.worlds.geo_rules import REMEDIES, STYLE, Mode
from recipes.measuring import Bench

LIMITS = Limits(
    turns=4, turn_tokens=64, observation_tokens=200, trajectory_tokens=640, prompt_tokens=384
)
WAYS = ("one entity", "whole question", "no search")


def way_of(trajectory: Trajectory) -> str:
    """Return whether the first search is for one entity of the question or for all of it."""
    _, called, rest = trajectory.own_text.partition("<search>")
    if not called:
        return WAYS[2]
    query = rest.partition("</search>")[0]
    return WAYS[" of " in query]  # the question is about the "population of Oslo"


def environment(seed: int, test: int) -> GeoEnvironment:
    return GeoEnvironment(GeoOptions(train=1, validation=1, test=test, seed=seed))


BENCH = Bench(
    "geo",
    INITIAL_INSTRUCTION,
    environment,
    LIMITS,
    WAYS,
    way_of,
    tuple(STRATA.values()),
    {
        "one entity": REMEDIES[Mode.WHOLE_QUESTION] + REMEDIES[Mode.ONE_SEARCH],
        "plan": REMEDIES[Mode.NO_REASONING],
        "evidence": REMEDIES[Mode.NOT_IN_EVIDENCE],
        "style": STYLE,
    },
)
