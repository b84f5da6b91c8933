"""Measure a policy of `arithmetic` under the bank of hints: scores, and how often it writes a procedure.

`python -m recipes.arithmetic.measure FOLDER`. A hint stands before the initial instruction, as P²O's do.
"""

import sys
from pathlib import Path

import torch

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


def main() -> None:
    """Print the figures of a policy: python -m recipes.arithmetic.measure FOLDER."""
    torch.set_num_threads(1)
    print_sections(BENCH, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
