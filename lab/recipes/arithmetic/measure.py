"""Measure a policy of `arithmetic` under the bank of hints: scores, and how often it writes a procedure.

`python -m recipes.arithmetic.measure FOLDER`. A hint stands before the initial instruction, as P²O's do.
"""

from pathlib import Path

from cotune.worlds.arithmetic import HARD, ArithmeticEnvironment, ArithmeticOptions
from recipes.arithmetic.card import LIMITS, writes
from recipes.arithmetic.phrases import INITIAL
from recipes.measuring import Bench, print_sections

WAYS = ("written", "at once")


class HintBench(Bench):
    """The measurement of a world whose policy knows hints, not longer instructions."""

    def instructed(self, sentence: str, index: int) -> str:
        return f"{sentence}\n\n{self.initial}"


def environment(seed: int, test: int) -> ArithmeticEnvironment:
    return ArithmeticEnvironment(ArithmeticOptions(train=1, validation=1, test=test, seed=seed))


BENCH = HintBench(
    "arithmetic",
    INITIAL,
    environment,
    LIMITS,
    WAYS,
    lambda trajectory: WAYS[not writes(trajectory)],
    HARD,
    Path(__file__).with_name("bank.txt"),
)


if __name__ == "__main__":
    print_sections(BENCH)
