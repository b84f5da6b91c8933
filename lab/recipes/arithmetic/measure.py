"""Measure a policy of `arithmetic` under the bank of hints: scores, and how often it writes a procedure.

A hint stands before the initial instruction, as P²O's do.
"""

from pathlib import Path

from cotune import Limits, Trajectory
from cotune_lab.worlds.arithmetic import HARD, ArithmeticEnvironment, ArithmeticOptions
from recipes.arithmetic.phrases import INITIAL
from recipes.measuring import Bench, read_bank

LIMITS = Limits(
    turns=1, turn_tokens=144, observation_tokens=1, trajectory_tokens=146, prompt_tokens=192
)
WAYS = ("written", "at once")


class HintBench(Bench):
    """The measurement of a world whose policy knows hints, not longer instructions."""

    def instructed(self, sentence: str, index: int) -> str:
        return f"{sentence}\n\n{self.initial}"


def way_of(trajectory: Trajectory) -> str:
    """Return whether a response holds written columns."""
    return WAYS["=" not in trajectory.own_text]


def environment(seed: int, test: int) -> ArithmeticEnvironment:
    return ArithmeticEnvironment(ArithmeticOptions(train=1, validation=1, test=test, seed=seed))


BENCH = HintBench(
    "arithmetic",
    INITIAL,
    environment,
    LIMITS,
    WAYS,
    way_of,
    HARD,
    read_bank(Path(__file__).with_name("bank.txt")),
)
