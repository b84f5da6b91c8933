"""The bundled world `ladder`: sums of several numbers, on which the best instruction changes.

A problem starts from a number, adds small ones and, on the last rung, takes one away. Each addition
carries to the tens, and the subtraction borrows. There are three ways to answer:

    at once       the tens of the first number: right only if nothing carries
    together      two or three of the small numbers are summed first, so that one or two lines carry;
                  there is no place for what is taken away
    one by one    a line for each number, each with a carry or a borrow: right on every rung

The bundled policy forgets most carries and borrows. "Together" has fewer of them and is better at first;
once the carry is learnt, "one by one" is, and only there is a borrow to be learnt from. As an environment
it has one turn, with the answer in `\\boxed{}`.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from cotune.data.splits import digest
from cotune.environments.math import INITIAL_INSTRUCTION, MathEnvironment
from cotune.errors import ConfigError
from cotune.rewards.boxed import BoxedReward
from cotune.types import Task
from cotune.worlds import arithmetic
from cotune.worlds.arithmetic import NAMES, THINGS, asked

RUNGS = ("no carry", "3 carries", "4 carries", "5 carries and a borrow")
"""The strata, easiest first."""
SHARES = (3, 4, 5, 8)
"""Problems of each rung among twenty."""
STORY = "story: "
"""Begins the strata of problems told as a story, a wording that the bundled policy was not taught."""
_TRIES = 5000  # draws of one problem before a rung counts as exhausted
_TURNS = tuple(rung for rung, share in zip(RUNGS, SHARES, strict=True) for _ in range(share))


@dataclass(frozen=True)
class Problem:
    """A first number, the small numbers that are added, and one that is taken away.

    Attributes:
        taken: the number taken away; 0 for none.
        text: the question.
    """

    rung: str
    first: int
    added: tuple[int, ...]
    taken: int
    text: str

    @property
    def answer(self) -> int:
        return self.first + sum(self.added) - self.taken

    @property
    def at_once(self) -> int:
        """Return the answer without carrying: the first number's tens, the right ones."""
        return self.first // 10 * 10 + self.answer % 10

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Return the small numbers as "together" sums them, two or three at a time."""
        size = {3: (3,), 4: (2, 2), 5: (3, 2)}.get(len(self.added), (len(self.added),))
        parts: list[tuple[int, ...]] = []
        start = 0
        for count in size:
            parts.append(self.added[start : start + count])
            start += count
        return tuple(parts)


def carries(left: int, right: int) -> bool:
    """Return whether adding the last digits of two numbers carries to the tens."""
    return left % 10 + right % 10 > 9


def problem(rng: random.Random, rung: str, story: bool = False) -> Problem:
    """Draw a problem of a rung."""
    plain = rung == RUNGS[0]
    count = rng.choice((2, 3)) if plain else int(rung[0])
    while True:
        first = rng.randrange(11, 60)
        total, added = first, list[int]()
        for _ in range(count):
            fitting = [
                a for a in (range(1, 5) if plain else range(4, 10)) if carries(total, a) != plain
            ]
            if not fitting:
                break
            added.append(rng.choice(fitting))
            total += added[-1]
        taken = 0
        if rung == RUNGS[3]:
            # 9 is left to no borrow.
            taken = rng.randrange(max(4, total % 10 + 1), 10) if total % 10 < 9 else 0
            if not taken:
                continue
        if len(added) == count:
            write = _story if story else _asked
            return Problem(rung, first, tuple(added), taken, write(rng, first, added, taken))


def _asked(rng: random.Random, first: int, added: list[int], taken: int) -> str:
    sum_ = " + ".join(map(str, (first, *added))) + (f" - {taken}" if taken else "")
    return asked(rng, sum_)


def _story(rng: random.Random, first: int, added: list[int], taken: int) -> str:
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    gets = " + ".join(map(str, (first, *added)))
    gives = f" - {taken} {things}" if taken else f" {things}"
    return f"{name} counts {gets}{gives}. How many {things} is that?"


def split_of(text: str) -> str:
    """Return the split of a problem, by a hash of its numbers."""
    numbers = "".join(c if c.isdigit() or c in "+-" else " " for c in text).split()
    return arithmetic.split_of(" ".join(numbers))


@dataclass(frozen=True, kw_only=True)
class LadderOptions:
    """The problems of the world that a run uses.

    Attributes:
        train, validation, test: numbers of problems, in fixed shares of each rung.
        stories: share of the test problems told as a story, a wording that the bundled policy was not
            trained on.
        seed: other problems for another seed.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: Literal["ladder"] = "ladder"
    train: int = 480
    validation: int = 100
    test: int = 400
    stories: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("train", "validation", "test"):
            if getattr(self, name) < 1:
                raise ValueError(f"environment.{name} is {getattr(self, name)}; expected 1 or more")
        if not 0 <= self.stories <= 1:
            raise ValueError(f"environment.stories is {self.stories}; expected between 0 and 1")


class LadderEnvironment(MathEnvironment):
    """Return problems in disjoint splits, interleaved so that every prefix has about the same mix.

    Raises:
        ConfigError: a split asks for more distinct problems than there are.
    """

    def __init__(self, options: LadderOptions | None = None) -> None:
        options = options or LadderOptions()
        told = round(options.test * options.stories)
        tasks = {
            "train": _drawn(options, "train", options.train),
            "validation": _drawn(options, "validation", options.validation),
            "test": [
                *_drawn(options, "test", options.test - told),
                *_drawn(options, "test", told, story=True),
            ],
        }
        # In mathematics "12+13" equals 25; here it is the question, not an answer.
        super().__init__(tasks, INITIAL_INSTRUCTION, BoxedReward(plain_integers=True))


def _drawn(options: LadderOptions, split: str, count: int, story: bool = False) -> list[Task]:
    order = list(_TURNS)
    random.Random("ladder/order").shuffle(order)
    rungs = {rung: _endless(options, split, rung, story) for rung in RUNGS}
    return [_task(next(rungs[order[i % len(order)]]), split, story) for i in range(count)]


def _endless(options: LadderOptions, split: str, rung: str, story: bool) -> Iterator[Problem]:
    """Yield different problems of a rung in a split."""
    rng = random.Random(f"ladder/{options.seed}/{split}/{rung}/{story}")
    seen = set[str]()
    while True:
        for _ in range(_TRIES):
            drawn = problem(rng, rung, story)
            if drawn.text not in seen and split_of(drawn.text) == split:
                seen.add(drawn.text)
                yield drawn
                break
        else:
            raise ConfigError(
                f"environment.{split} asks for more than the {len(seen)} problems with {rung} that "
                "could be found; lower it"
            )


def _task(drawn: Problem, split: str, story: bool) -> Task:
    id = f"ladder-{split}-{digest(drawn.text)}"
    stratum = STORY + drawn.rung if story else drawn.rung
    return Task(id, drawn.text, (str(drawn.answer),), stratum, one_by_one(drawn))


# ---- the two procedures


def one_by_one(given: Problem, kept: Iterator[bool] | None = None) -> str:
    """Return a line for each number.

    Args:
        kept: whether each carry or borrow in turn is remembered; None remembers all.

    >>> p = Problem("", 47, (8, 6), 4, "")
    >>> one_by_one(p)
    'One by one: 47+8: 5 up 55; 55+6: 1 up 61; 61-4: 7 down 57;'
    >>> one_by_one(p, iter([False, True, False]))
    'One by one: 47+8: 5 45; 45+6: 1 up 51; 51-4: 7 57;'
    """
    total, lines = given.first, list[str]()
    for number in given.added:
        line, total = _added(total, number, kept)
        lines.append(line)
    if given.taken:
        digit = (total - given.taken) % 10
        borrows = total % 10 < given.taken
        down = borrows and (kept is None or next(kept))
        result = (total // 10 - down) * 10 + digit
        lines.append(f"{total}-{given.taken}: {digit}{' down' * down} {result};")
    return "One by one: " + " ".join(lines)


def together(given: Problem, kept: Iterator[bool] | None = None) -> str:
    """Return the small numbers summed first, two or three at a time; what is taken away is left out.

    >>> together(Problem("", 47, (8, 6, 9), 0, ""))
    'Together: 8+6+9=23; 47+23: 0 up 70;'
    """
    total, lines = given.first, list[str]()
    for chunk in given.chunks:
        lines.append(f"{'+'.join(map(str, chunk))}={sum(chunk)};")
        line, total = _added(total, sum(chunk), kept)
        lines.append(line)
    return "Together: " + " ".join(lines)


def _added(total: int, number: int, kept: Iterator[bool] | None) -> tuple[str, int]:
    digit = (total + number) % 10
    up = carries(total, number) and (kept is None or next(kept))
    result = (total // 10 + number // 10 + up) * 10 + digit
    return f"{total}+{number}: {digit}{' up' * up} {result};", result


def result_of(procedure: str) -> int:
    """Return the last result of a written procedure."""
    return int(procedure.rstrip(";").rsplit(" ", 1)[1])
