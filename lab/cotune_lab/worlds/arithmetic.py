"""The world `arithmetic`: problems, the written procedures that solve them, and the slips.

There are four kinds of problems, each short or long. Answering a long one at once gives the slips
that children make (Brown and Burton, 1978): carries are forgotten, the smaller digit is subtracted
from the larger one. A written procedure, a different one for each kind, gives the right answer. An
episode has one turn, with the answer in `\\boxed{}`.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from cotune import Task
from cotune.data.splits import digest
from cotune.environments.registry import EnvironmentKind
from cotune.environments.single_turn import INITIAL_INSTRUCTION, MathEnvironment
from cotune.rewards.boxed import BoxedReward
from cotune.worlds.ladder import SPLITS, different, split_by_hash, word_question
from cotune_lab.worlds.content_splits import check_counts

_TRIES = 2000  # draws of one problem before a stratum counts as exhausted
KINDS = ("addition", "subtraction", "multiplication", "word problem")
SIZES = ("short", "long")
HARD = tuple(f"long {kind}" for kind in KINDS)
"""The strata that the bundled policy misses unless it writes a procedure."""

Operator = Literal["+", "-", "*"]


@dataclass(frozen=True)
class Operation:
    """One step: an operation on two whole numbers. No result is negative."""

    left: int
    operator: Operator
    right: int

    @property
    def result(self) -> int:
        if self.operator == "+":
            return self.left + self.right
        if self.operator == "-":
            return self.left - self.right
        return self.left * self.right

    @property
    def slipped(self) -> int:
        """Return the result without carrying and borrowing.

        >>> Operation(47, "+", 85).slipped, Operation(42, "-", 17).slipped, Operation(47, "*", 6).slipped
        (122, 35, 242)
        """
        left, other = _digits(self.left), _digits(self.right)
        if self.operator == "*":
            columns = [a * self.right for a in left]
        else:
            pairs = [(_at(left, i), _at(other, i)) for i in range(max(len(left), len(other)))]
            columns = [a + b if self.operator == "+" else abs(a - b) for a, b in pairs]
        *lower, highest = columns
        return int("".join(map(str, (highest, *(c % 10 for c in reversed(lower))))))

    @property
    def columns(self) -> str:
        """Return the written procedure from the right: each column and the result so far.

        >>> Operation(47, "+", 85).columns
        '7+5+0=12 2; 4+8+1=13 132;'
        >>> Operation(42, "-", 17).columns
        '12-7-0=5 5; 4-1-1=2 25;'
        >>> Operation(47, "*", 6).columns
        '7*6+0=42 2; 4*6+4=28 282;'
        """
        written: list[str] = []
        left, other = _digits(self.left), _digits(self.right)
        width = len(left) if self.operator == "*" else max(len(left), len(other))
        carry, result = 0, ""
        for i in range(width):
            a, b, carried = _at(left, i), _at(other, i), carry
            value, carry = self._column(a, b, carried)
            if self.operator == "-":
                a += 10 * carry
            terms = (
                f"*{self.right}+" if self.operator == "*" else f"{self.operator}{b}{self.operator}"
            )
            result = f"{value if i == width - 1 else value % 10}{result}"
            written.append(f"{a}{terms}{carried}={value} {result};")
        return " ".join(written)

    def _column(self, a: int, b: int, carry: int) -> tuple[int, int]:
        """Return a column's value, and the carry to the next one."""
        if self.operator == "-":
            borrows = a - b - carry < 0
            return a + 10 * borrows - b - carry, int(borrows)
        value = a * self.right + carry if self.operator == "*" else a + b + carry
        return value, value // 10

    @property
    def carries(self) -> int:
        """Return the number of columns that carry to the next one."""
        left, other = _digits(self.left), _digits(self.right)
        carry = count = 0
        for i in range(max(len(left), len(other)) - 1):
            _value, carry = self._column(_at(left, i), _at(other, i), carry)
            count += carry > 0
        return count


@dataclass(frozen=True)
class Problem:
    """A problem of one or two steps; the second starts from the first one's result."""

    kind: str
    size: str
    text: str
    steps: tuple[Operation, ...]

    @property
    def stratum(self) -> str:
        return f"{self.size} {self.kind}"

    @property
    def answer(self) -> int:
        return self.steps[-1].result

    @property
    def at_once(self) -> int:
        """Return the answer without written steps: wrong by slips if the problem is long."""
        if self.size == "short":
            return self.answer
        value = self.steps[0].slipped
        for step in self.steps[1:]:
            right = min(step.right, value) if step.operator == "-" else step.right
            value = Operation(value, step.operator, right).slipped
        return value

    @property
    def procedure(self) -> str:
        """Return the written solution of this kind of problem, without its answer."""
        if self.kind == "addition":
            return f"Adding the columns: {self.steps[0].columns}"
        if self.kind == "subtraction":
            return f"With borrowing: {self.steps[0].columns}"
        if self.kind == "multiplication":
            return f"Digit times number: {self.steps[0].columns}"
        parts = [f"{step.left}{step.operator}{step.right}: {step.columns}" for step in self.steps]
        return f"First {parts[0]} Then {parts[1]}"


def _digits(number: int) -> list[int]:
    """Return the digits, least significant first."""
    return [int(d) for d in reversed(str(number))]


def _at(digits: list[int], i: int) -> int:
    return digits[i] if i < len(digits) else 0


def problem(rng: random.Random, kind: str, size: str) -> Problem:
    """Draw a problem; a long one has at least two carries."""
    while True:
        text, steps = _DRAW[kind](rng, size == "long")
        if all(step.result >= 0 and not _leading_zero(step) for step in steps) and (
            size == "short" or _carries_enough(steps)
        ):
            return Problem(kind, size, text, steps)


def _carries_enough(steps: tuple[Operation, ...]) -> bool:
    carries = [step.carries for step in steps]
    return min(carries) >= 1 and sum(carries) >= 2


def _leading_zero(step: Operation) -> bool:
    """Return whether the written result of a subtraction would start with a zero."""
    return step.operator == "-" and len(str(step.result)) < len(str(step.left))


Drawn = tuple[str, tuple[Operation, ...]]


def _number(rng: random.Random, digits: int) -> int:
    return rng.randrange(10 ** (digits - 1), 10**digits)


def _addition(rng: random.Random, long: bool) -> Drawn:
    digits = rng.choice((4, 5)) if long else rng.choice((1, 2))
    a, b = _number(rng, digits), _number(rng, digits)
    return word_question(rng, f"{a} + {b}"), (Operation(a, "+", b),)


def _subtraction(rng: random.Random, long: bool) -> Drawn:
    digits = rng.choice((4, 5)) if long else 2
    a, b = _number(rng, digits), _number(rng, digits)
    return word_question(rng, f"{a} - {b}"), (Operation(a, "-", b),)


def _multiplication(rng: random.Random, long: bool) -> Drawn:
    a, b = _number(rng, rng.choice((3, 4)) if long else 2), rng.randrange(3 if long else 2, 10)
    return word_question(rng, f"{a} * {b}"), (Operation(a, "*", b),)


NAMES = ("Ada", "Ben", "Carl", "Dina", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jana")
THINGS = (
    "apples",
    "books",
    "cards",
    "coins",
    "eggs",
    "nails",
    "pens",
    "shells",
    "stamps",
    "tiles",
)


def _word_problem(rng: random.Random, long: bool) -> Drawn:
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    digits = 3 if long else 1
    a, b, c = (_number(rng, digits) for _ in range(3))
    if rng.random() < 0.5:
        text = (
            f"{name} has {a} {things}, gets {b} more and then gives away {c}. "
            f"How many {things} are left?"
        )
        return text, (Operation(a, "+", b), Operation(a + b, "-", c))
    k = rng.randrange(2, 10)
    text = f"{name} has {k} boxes of {a} {things} and {b} more. How many {things} is that?"
    return text, (Operation(a, "*", k), Operation(a * k, "+", b))


_DRAW = {
    "addition": _addition,
    "subtraction": _subtraction,
    "multiplication": _multiplication,
    "word problem": _word_problem,
}


def split_of(text: str) -> str:
    """Return the split of a problem, by a hash of its text."""
    return split_by_hash(text, SPLITS)


@dataclass(frozen=True, kw_only=True)
class ArithmeticOptions:
    """The problems of the world that a run uses.

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
    kinds: Sequence[str] = KINDS
    long_share: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "train", "validation", "test")
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
    """Return problems in disjoint splits, interleaved so that every prefix has the same mix.

    Raises:
        ConfigError: a split asks for more distinct problems than there are.
    """

    def __init__(self, options: ArithmeticOptions | None = None) -> None:
        options = options or ArithmeticOptions()
        counts = {"train": options.train, "validation": options.validation, "test": options.test}
        tasks = {split: _drawn(options, split, count) for split, count in counts.items()}
        # In mathematics "12*13" equals 156; here it is the question, not an answer.
        super().__init__(tasks, INITIAL_INSTRUCTION, BoxedReward(plain_integers=True))


environment = EnvironmentKind(
    options=ArithmeticOptions,
    build=lambda options, tasks: ArithmeticEnvironment(options),
)


def _drawn(options: ArithmeticOptions, split: str, count: int) -> list[Task]:
    """Return `count` different problems of a split, taking the strata in turn."""
    strata = {
        (kind, size): _endless(options, split, kind, size)
        for kind in options.kinds
        for size in SIZES
    }
    return [next(strata[stratum]) for stratum in _turns(options, count)]


def _turns(options: ArithmeticOptions, count: int) -> Iterator[tuple[str, str]]:
    """Yield the stratum of each problem: kinds in turn, long ones spread evenly by their share."""
    kinds = len(options.kinds)
    for i in range(count):
        turn = i // kinds
        long = math.floor((turn + 1) * options.long_share) > math.floor(turn * options.long_share)
        yield options.kinds[i % kinds], "long" if long else "short"


def _endless(options: ArithmeticOptions, split: str, kind: str, size: str) -> Iterator[Task]:
    """Yield different problems of a stratum in a split."""
    rng = random.Random(f"arithmetic/{options.seed}/{split}/{kind}/{size}")

    def draw() -> Task | None:
        drawn = problem(rng, kind, size)
        if split_of(drawn.text) != split:
            return None
        id = f"arithmetic-{split}-{digest(drawn.text)}"
        return Task(id, drawn.text, (str(drawn.answer),), drawn.stratum, drawn.procedure)

    advice = ", or change environment.long_share"
    return different(draw, _TRIES, split, f"{size} {kind} problems", advice)
