"""Measure the steerable model under the bank of hints of `arithmetic`: scores, and procedures written."""

from cotune_lab.worlds.arithmetic import HARD, ArithmeticEnvironment, ArithmeticOptions
from recipes.arithmetic.measure import BENCH as ARITHMETIC
from recipes.arithmetic.measure import LIMITS, HintBench
from recipes.steerable.fit import KINDS


def environment(seed: int, test: int) -> ArithmeticEnvironment:
    options = ArithmeticOptions(train=1, validation=1, test=test, seed=seed, kinds=KINDS)
    return ArithmeticEnvironment(options)


BENCH = HintBench(
    "steerable",
    ARITHMETIC.initial,
    environment,
    LIMITS,
    ARITHMETIC.ways,
    ARITHMETIC.way_of,
    tuple(stratum for stratum in HARD if stratum.removeprefix("long ") in KINDS),
    ARITHMETIC.requests,
    temperature=0.7,  # that of training: at 1 so small a model writes too much that is improbable
)
