"""The bundled world `ladder`: sums of several numbers, on which the best instruction changes twice.

A problem starts from a number, adds small ones and takes others away. Lines of two digits are written, and
some of them carry to the tens or borrow from them. There are four ways to answer:

    at once       the tens of the first number: right only if nothing carries
    together      the added numbers are summed first, so that one line carries, or none; there is no place for
                  what is taken away
    one by one    a line for each added number, then one line for all that is taken away; there is no place
                  for hundreds, which some problems reach if everything is added first
    in order      a line for each number as it stands, with a carry or a borrow in each: right on every rung

The bundled policy forgets most carries and borrows. "Together" has the fewest of them and is best at first.
Once the carry is learnt, "one by one" is best, with at most one borrow where "in order" has more; once the
borrow is learnt, "in order" is best. No pattern of slips gives a right answer. An episode has one turn, with
the answer in `\\boxed{}`.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field

from cotune.data.splits import digest, sha
from cotune.environments.registry import EnvironmentKind
from cotune.environments.single_turn import INITIAL_INSTRUCTION, MathEnvironment
from cotune.errors import ConfigError
from cotune.rewards.boxed import BoxedReward
from cotune.types import Task
from cotune.utils.validation import Model
from cotune.worlds.rules_llm import RulesLLM

Rung = Literal[
    "no carry", "round sum", "3 carries", "3 borrows in order", "3 borrows", "3 borrows below 100",
]  # fmt: skip
RUNGS: tuple[Rung, ...] = get_args(Rung)
"""The strata.

    no carry               two or three numbers, added without a carry: every way is right
    round sum              three that sum to 20: together needs no carry, the other ways need two
    3 carries              three that each carry; together has one carry
    3 borrows in order     two that carry, four that are taken away: three borrow, but their sum does not
    3 borrows              two that carry, three that borrow, and so does their sum
    3 borrows below 100    the same, but everything added first passes 99
"""
SHARES = (4, 2, 5, 5, 4, 6)
"""Problems of each rung among twenty-six."""
SPLITS = {"train": 0.8, "validation": 0.1, "test": 0.1}
LARGEST = 99
_TRIES = 20_000  # draws of one problem before a rung counts as exhausted
_ROUND = 20
_TURNS = tuple(rung for rung, share in zip(RUNGS, SHARES, strict=True) for _ in range(share))


class Way(StrEnum):
    """A way to answer."""

    AT_ONCE = "at once"
    TOGETHER = "together"
    ONE_BY_ONE = "one by one"
    IN_ORDER = "in order"


WRITTEN = (Way.TOGETHER, Way.ONE_BY_ONE, Way.IN_ORDER)
"""The ways that write lines, in the order in which they become the best."""


@dataclass(frozen=True)
class Problem:
    """A question's text, its first number, and the small ones that follow in order, below 0 if taken away."""

    rung: str
    first: int
    numbers: tuple[int, ...]
    text: str

    @property
    def answer(self) -> int:
        return self.first + sum(self.numbers)

    @property
    def at_once(self) -> int:
        """Return the answer without carrying: the first number's tens and the correct ones digit."""
        return self.first // 10 * 10 + self.answer % 10

    def groups(self, way: Way) -> tuple[tuple[int, ...], ...]:
        """Return the numbers as a way takes them, a line for each group.

        >>> Problem("", 47, (8, -9, 6, -8), "").groups(Way.ONE_BY_ONE)
        ((8,), (6,), (-9, -8))
        """
        added = tuple(n for n in self.numbers if n > 0)
        if way is Way.TOGETHER:
            return (added,)
        negative = tuple(n for n in self.numbers if n < 0)
        if way is Way.ONE_BY_ONE and negative:
            return (*((n,) for n in added), negative)
        return tuple((n,) for n in self.numbers)


def slippery(total: int, number: int) -> bool:
    """Return whether a line carries to the tens or borrows from them."""
    digit = total % 10
    return digit + number % 10 > 9 if number > 0 else digit < -number % 10


def after(total: int, number: int, remembered: bool) -> int:
    """Return a line's result.

    A forgotten carry leaves the tens as they are. A forgotten borrow takes the smaller digit from the larger:
    61 - 4 gives 63. So the two do not cancel.
    """
    if remembered or not slippery(total, number):
        return total + number
    if number > 0:
        return total + number - 10
    return total + number + 2 * (-number % 10 - total % 10)


def outcomes(first: int, numbers: Sequence[int]) -> tuple[int, set[int]]:
    """Return what lines lead to if nothing is forgotten, and all that they lead to if something is."""
    right = first
    slipped = set[int]()
    for number in numbers:
        slipped = {
            after(total, number, remembered) for total in slipped for remembered in (True, False)
        }
        if slippery(right, number):
            slipped.add(after(right, number, remembered=False))
        right += number
    return right, slipped


def problem(rng: random.Random, rung: str, split: str | None = None) -> Problem:
    """Draw a problem of a rung, of a split if one is given."""
    while True:
        first, numbers = _NUMBERS[rung](rng)
        # Most draws end here: the cheapest test comes first.
        if not numbers:
            continue
        if split is not None and split_by_hash(_sum(first, numbers), SPLITS) != split:
            continue
        if not _tells(Problem(rung, first, numbers, "")):
            continue
        return Problem(rung, first, numbers, word_question(rng, _sum(first, numbers)))


def _draw_added(rng: random.Random, count: int, carries: bool) -> tuple[int, tuple[int, ...]]:
    """Return numbers that all carry one by one, or of which none does."""
    first = rng.randrange(11, 60)
    total = first
    added: list[int] = []
    for _ in range(count):
        size = range(4, 10) if carries else range(1, 5)
        fitting = [n for n in size if slippery(total, n) == carries]
        if not fitting:
            return first, ()
        added.append(rng.choice(fitting))
        total += added[-1]
    return first, tuple(added)


def _draw_round(rng: random.Random) -> tuple[int, tuple[int, ...]]:
    """Return three numbers that sum to 20."""
    a = rng.randrange(3, 10)
    b = rng.randrange(3, 10)
    first = rng.randrange(11, 70)
    last = _ROUND - a - b
    return first, (a, b, last) if 3 <= last <= 9 else ()


def _draw_taken(
    rng: random.Random, others: int = 0, over: bool = False
) -> tuple[int, tuple[int, ...]]:
    """Return two numbers that carry and three that borrow in order, and `others` that are taken away without."""
    first = rng.randrange(80, 96) if over else rng.randrange(40, 71)
    kinds = [(1, True), *[(-1, True)] * 3, *[(-1, False)] * others]
    rng.shuffle(kinds)
    total = first
    numbers: list[int] = []
    for sign, slips in ((1, True), *kinds):
        fitting = _fitting(total % 10, sign, slips)
        if not fitting:
            return first, ()
        numbers.append(rng.choice(fitting))
        total += numbers[-1]
        if total > LARGEST:
            return first, ()
    added = first + sum(n for n in numbers if n > 0)
    return first, tuple(numbers) if (added > LARGEST) == over else ()


@cache
def _fitting(digit: int, sign: int, slips: bool) -> tuple[int, ...]:
    """Return the numbers that carry or borrow after a total's last digit, or those that do not."""
    return tuple(sign * n for n in range(4, 10) if slippery(digit, sign * n) == slips)


_NUMBERS: dict[str, Callable[[random.Random], tuple[int, tuple[int, ...]]]] = {
    RUNGS[0]: lambda rng: _draw_added(rng, rng.choice((2, 3)), carries=False),
    RUNGS[1]: _draw_round,
    RUNGS[2]: lambda rng: _draw_added(rng, 3, carries=True),
    RUNGS[3]: lambda rng: _draw_taken(rng, others=1),
    RUNGS[4]: lambda rng: _draw_taken(rng),
    RUNGS[5]: lambda rng: _draw_taken(rng, over=True),
}
_SLIPS = {
    RUNGS[2]: {Way.TOGETHER: [True]},
    RUNGS[3]: {Way.ONE_BY_ONE: [True, True, False]},
    RUNGS[4]: {Way.ONE_BY_ONE: [True, True, True]},
}
"""The lines of a way: true if one carries or borrows."""


def _tells(problem: Problem) -> bool:
    """Return whether a right answer tells that nothing was forgotten, and the lines are the rung's."""
    if problem.rung == RUNGS[0]:
        return True
    if problem.answer in (problem.at_once, LARGEST):
        return False
    for way in WRITTEN:
        sums = [sum(group) for group in problem.groups(way)]
        right, slipped = outcomes(problem.first, sums)
        partial = way is Way.TOGETHER and min(problem.numbers) < 0
        if problem.answer in slipped or (partial and right == problem.answer):
            return False
        totals = accumulate(sums[:-1], initial=problem.first)
        slips = [slippery(t, n) for t, n in zip(totals, sums, strict=True)]
        if slips != _SLIPS.get(problem.rung, {}).get(way, slips):
            return False
    return True


def word_question(rng: random.Random, expression: str) -> str:
    """Return a question for an expression's value, in one of three wordings."""
    return rng.choice(("What is {}?", "Compute {}.", "Calculate {}.")).format(expression)


def _sum(first: int, numbers: Sequence[int]) -> str:
    """Return a sum's text.

    >>> _sum(47, (8, -9))
    '47 + 8 - 9'
    """
    return f"{first} " + " ".join(f"{'-' if n < 0 else '+'} {abs(n)}" for n in numbers)


# ---- questions that differ, and their splits; other generated worlds use these, too


def split_by_hash(text: str, shares: Mapping[str, float]) -> str:
    """Return the split of a text, by its hash; `shares` sum to 1, and "test" is one of them."""
    place = int(sha(text)[:16], 16) / 16**16
    for split, share in shares.items():
        if place < share:
            return split
        place -= share
    return "test"


def different(
    draw: Callable[[], Task | None], tries: int, split: str, kind: str, advice: str = ""
) -> Iterator[Task]:
    """Yield tasks whose questions differ, endlessly.

    Args:
        draw: draws a task; None if it is of another split.
        tries: draws of one task; if none gives a new question, there are no more: a ConfigError.
        split, kind, advice: the field, the kind of task and further advice, for the error.
    """
    questions = set[str]()
    while True:
        draws = (draw() for _ in range(tries))
        new = next((task for task in draws if task and task.question not in questions), None)
        if new is None:
            raise ConfigError(
                f"environment.{split} asks for more than the {len(questions)} {kind} that could be found; "
                f"lower it{advice}"
            )
        questions.add(new.question)
        yield new


class LadderOptions(Model):
    """The problems of the world that a run uses, in fixed shares of each rung."""

    kind: Literal["ladder"] = "ladder"
    train: int = Field(default=480, ge=1)
    """Number of problems to train on."""
    validation: int = Field(default=100, ge=1)
    """Number of problems for choosing the best policy."""
    test: int = Field(default=400, ge=1)
    """Number of problems for the final evaluation."""
    rungs: tuple[Rung, ...] = Field(default=RUNGS, min_length=1)
    """The strata to draw from. Without the borrows, the best instruction does not change."""
    seed: int = 0
    """Other problems for another seed."""


class LadderEnvironment(MathEnvironment):
    """Problems in disjoint splits, interleaved so that every prefix has about the same mix.

    Raises ConfigError: a split asks for more distinct problems than there are.
    """

    def __init__(self, options: LadderOptions | None = None) -> None:
        options = options or LadderOptions()
        tasks = {split: _draw_tasks(options, split, getattr(options, split)) for split in SPLITS}
        # In mathematics "12+13" equals 25; here it is the question, not an answer.
        super().__init__(tasks, INITIAL_INSTRUCTION, BoxedReward(plain_integers=True))

    def offline_rules(self, seed: int) -> RulesLLM:
        """Return the rules that write instructions and hints in an LLM's place."""
        return RulesLLM(seed)


def _draw_tasks(options: LadderOptions, split: str, count: int) -> list[Task]:
    order = [rung for rung in _TURNS if rung in options.rungs]
    random.Random("ladder/order").shuffle(order)
    rungs = {rung: _endless(options, split, rung) for rung in options.rungs}
    return [next(rungs[order[i % len(order)]]) for i in range(count)]


def _endless(options: LadderOptions, split: str, rung: str) -> Iterator[Task]:
    """Yield different problems of a rung in a split."""
    # "False" has no meaning; without it the problems would not be those of the results.
    rng = random.Random(f"ladder/{options.seed}/{split}/{rung}/False")

    def draw() -> Task:
        sums = problem(rng, rung, split)
        id = f"ladder-{split}-{digest(sums.text)}"
        return Task(id, sums.text, (str(sums.answer),), rung, solution(sums))

    return different(draw, _TRIES, split, f"problems with {rung}")


def solution(problem: Problem) -> str:
    """Return the lines of a problem in order, each with its carry or borrow.

    >>> solution(Problem("", 47, (8, -9, 6, -8), ""))
    'In order: 47+8: 5 up 55; 55-9: down 6 46; 46+6: 2 up 52; 52-8: down 4 44;'
    """
    totals = [*accumulate(problem.numbers, initial=problem.first)]
    lines: list[str] = []
    for total, number, result in zip(totals, problem.numbers, totals[1:], strict=False):
        slips = slippery(total, number)
        up, down = (" up" * slips, "") if number > 0 else ("", " down" * slips)
        lines.append(f"{total}{number:+}:{down} {result % 10}{up} {result};")
    return "In order: " + " ".join(lines)


KIND = EnvironmentKind(
    options=LadderOptions,
    build=lambda options, tasks: LadderEnvironment(options),
    offline_rules=True,
    policy=Path(__file__).parent / "weights" / "ladder",
)
