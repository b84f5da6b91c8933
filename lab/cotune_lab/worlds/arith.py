"""The task `arith`: sums and differences of numbers to 50, and products to 25 × 12.

The last number of a reply is its answer. Small pretrained models answer under a short instruction, and go
wrong in long explanations.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from cotune import TaskEnvironment, Trajectory
from cotune.environments.registry import EnvironmentKind
from cotune_lab.last_number import last_number
from cotune_lab.worlds.content_splits import Drawn, Sizes, drawn_tasks, split_of

INITIAL_INSTRUCTION = "Think step by step."
BANK = Path(__file__).with_name("arith.txt")
WORDINGS: Mapping[str, tuple[str, ...]] = {
    "addition": (
        "What is {a} plus {b}?",
        "How much is {a} plus {b}?",
        "Add {a} and {b}.",
        "Find the sum of {a} and {b}.",
        "Work out {a} + {b}.",
        "{a} + {b} = ?",
    ),
    "subtraction": (
        "What is {a} minus {b}?",
        "How much is {a} minus {b}?",
        "Subtract {b} from {a}.",
        "Take {b} away from {a}.",
        "Work out {a} - {b}.",
        "{a} - {b} = ?",
    ),
    "multiplication": (
        "What is {a} times {b}?",
        "How much is {a} times {b}?",
        "Multiply {a} by {b}.",
        "Find the product of {a} and {b}.",
        "Work out {a} × {b}.",
        "{a} × {b} = ?",
    ),
}
STRATA = tuple(WORDINGS)
_FORMS = {
    kind: [re.compile(re.escape(w).replace(r"\{a\}", r"\d+").replace(r"\{b\}", r"\d+")) for w in ws]
    for kind, ws in WORDINGS.items()
}


def reward(reply: str, answer: int) -> float:
    """Return 1.0 if the last number in a reply is the answer, else 0.0."""
    return float(last_number(reply) == answer)


def type_of(question: str) -> str | None:
    """Return the stratum of a question of this task; None for any other text."""
    return next(
        (kind for kind, forms in _FORMS.items() if any(f.fullmatch(question) for f in forms)), None
    )


class ArithEnvironment(TaskEnvironment):
    """Questions whose pairs of numbers are in one split only; the reward is 1 for the right last number.

    Raises:
        ConfigError: a split asks for more questions than there are.
    """

    measure: ClassVar[str] = "exact match"

    def __init__(self, sizes: Sizes | None = None) -> None:
        tasks = drawn_tasks("arith", sizes or Sizes(), STRATA, _draw)
        super().__init__(tasks, INITIAL_INSTRUCTION)

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Return the reward of the policy's own text, and its last number."""
        number = last_number(trajectory.own_text)
        right = int(trajectory.task.answers[0])
        return reward(trajectory.own_text, right), None if number is None else f"{number:f}"


@dataclass(frozen=True, kw_only=True)
class ArithOptions(Sizes):
    """The questions of the world that a run uses."""

    kind: Literal["arith"] = "arith"


environment = EnvironmentKind(
    options=ArithOptions,
    build=lambda options, tasks: ArithEnvironment(options),
)


def _draw(rng: random.Random, kind: str, split: str) -> Drawn:
    """Draw a question on a pair of numbers of a split, in either order."""
    while True:
        a, b = rng.randint(2, 50), rng.randint(2, 50)
        if kind == "multiplication":
            a, b = rng.randint(2, 25), rng.randint(2, 12)
        if split_of(f"{kind} of {min(a, b)} and {max(a, b)}") == split:
            break
    if kind == "subtraction":
        a, b = max(a, b), min(a, b)
    elif rng.random() < 0.5:
        a, b = b, a
    results = {"addition": a + b, "subtraction": a - b, "multiplication": a * b}
    return rng.choice(WORDINGS[kind]).format(a=a, b=b), str(results[kind])
