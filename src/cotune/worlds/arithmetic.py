"""The bundled world `arithmetic` as an environment: one turn, the answer in `\\boxed{}`."""

import hashlib
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from cotune.environments.math import INITIAL_INSTRUCTION, MathEnvironment
from cotune.errors import ConfigError
from cotune.rewards.boxed import BoxedReward
from cotune.types import Task
from cotune.worlds.arithmetic_world import KINDS, SIZES, Problem, problem, split_of

_TRIES = 2000  # draws of one problem before a stratum counts as used up


@dataclass(frozen=True, kw_only=True)
class ArithmeticOptions:
    """Which problems of the world a run uses.

    Attributes:
        train, validation, test: numbers of problems, in equal shares of each kind.
        kinds: which kinds of problems, of "addition", "subtraction", "multiplication" and
            "word problem".
        long_share: the share of long problems, between 0 and 1.
        seed: other problems for another seed.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: Literal["arithmetic"] = "arithmetic"
    train: int = 480
    validation: int = 80
    test: int = 320
    kinds: tuple[str, ...] = KINDS
    long_share: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("train", "validation", "test"):
            if getattr(self, name) < 1:
                raise ValueError(f"environment.{name} is {getattr(self, name)}; expected 1 or more")
        if not self.kinds or len(set(self.kinds)) < len(self.kinds) or set(self.kinds) - set(KINDS):
            raise ValueError(
                f"environment.kinds is {list(self.kinds)}; expected some of {', '.join(KINDS)}, "
                "each once"
            )
        if not (math.isfinite(self.long_share) and 0 <= self.long_share <= 1):
            raise ValueError(
                f"environment.long_share is {self.long_share}; expected between 0 and 1"
            )


class ArithmeticEnvironment(MathEnvironment):
    """Problems of the world in disjoint splits, interleaved so that any prefix is mixed alike.

    Raises:
        ConfigError: a split is to hold more different problems than there are.
    """

    def __init__(self, options: ArithmeticOptions | None = None) -> None:
        options = options or ArithmeticOptions()
        counts = {"train": options.train, "validation": options.validation, "test": options.test}
        tasks = {split: _drawn(options, split, count) for split, count in counts.items()}
        # As mathematics "12*13" equals 156; here that is the question, not an answer.
        super().__init__(tasks, INITIAL_INSTRUCTION, BoxedReward(plain_integers=True))


def _drawn(options: ArithmeticOptions, split: str, count: int) -> list[Task]:
    """`count` different problems of a split, stratum by stratum in turn."""
    strata = {
        (kind, size): _endless(options, split, kind, size)
        for kind in options.kinds
        for size in SIZES
    }
    return [_task(next(strata[stratum]), split) for stratum in _turns(options, count)]


def _turns(options: ArithmeticOptions, count: int) -> Iterator[tuple[str, str]]:
    """The stratum of each problem: kinds in turn; long ones spread evenly, by their share."""
    kinds = len(options.kinds)
    for i in range(count):
        turn = i // kinds
        long = math.floor((turn + 1) * options.long_share) > math.floor(turn * options.long_share)
        yield options.kinds[i % kinds], "long" if long else "short"


def _endless(options: ArithmeticOptions, split: str, kind: str, size: str) -> Iterator[Problem]:
    """Different problems of a stratum in a split."""
    rng = random.Random(f"arithmetic/{options.seed}/{split}/{kind}/{size}")
    seen = set[str]()
    while True:
        for _ in range(_TRIES):
            drawn = problem(rng, kind, size)
            if drawn.text not in seen and split_of(drawn.text) == split:
                seen.add(drawn.text)
                yield drawn
                break
        else:
            raise ConfigError(
                f"environment.{split} asks for more than the {len(seen)} {size} {kind} problems "
                "that could be found; lower it, or change environment.long_share"
            )


def _task(drawn: Problem, split: str) -> Task:
    digest = hashlib.sha1(drawn.text.encode()).hexdigest()[:12]
    return Task(
        f"arithmetic-{split}-{digest}",
        drawn.text,
        (str(drawn.answer),),
        drawn.stratum,
        drawn.procedure,
    )
