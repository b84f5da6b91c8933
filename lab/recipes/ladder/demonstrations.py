"""Demonstrations: how the bundled policy of `ladder` is taught to act, forgetfully.

The demonstrator follows a request, and answers at once without one. It forgets most carries and borrows in
every procedure, so what is learnt about them in one helps in the others.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from cotune.environments.single_turn import INITIAL_INSTRUCTION
from cotune.worlds.ladder import (
    LARGEST,
    RUNGS,
    WRITTEN,
    Problem,
    Way,
    after,
    problem,
    slippery,
)
from recipes.ladder.phrases import GRAMMAR
from recipes.requests import Request

MIX = (6, 3, 4, 4, 5, 5)
"""Problems of each rung among twenty-seven demonstrations."""
REQUESTS = {"none": 20, **dict.fromkeys(WRITTEN, 19), Way.AT_ONCE: 4, "forbidding": 19}
"""Weights of what is asked for."""
HINTED = 0.15
"""Share of the requests that stand in the hint."""
FOLLOWS = 0.95
"""Chance that a request is followed; otherwise the answer comes at once."""
REMEMBERS = 0.40
"""Chance that a carry or a borrow is remembered: below one half, so that greedy decoding forgets it."""
CARELESS = 0.9
"""Chance that an answer that was asked for at once is wrong even if nothing carries."""


_OVER = "over"


def procedure(problem: Problem, way: Way, remembered: Iterator[bool] | None = None) -> str:
    """Return the lines of a way.

    Args:
        remembered: whether each carry or borrow in turn is remembered; None remembers all.
    """
    total = problem.first
    lines: list[str] = []
    for group in problem.groups(way):
        number = sum(group)
        if len(group) > 1:
            lines.append(f"{'+'.join(str(abs(n)) for n in group)}={abs(number)};")
        slips = slippery(total, number)
        carried = slips and (remembered is None or next(remembered))
        result = after(total, number, not slips or carried)
        up, down = (" up" * carried, "") if number > 0 else ("", " down" * carried)
        written = str(result) if result <= LARGEST else _OVER
        lines.append(f"{total}{number:+}:{down} {result % 10}{up} {written};")
        total = result
        if written == _OVER:
            break
    return f"{way.capitalize()}: " + " ".join(lines)


def result_of(procedure: str) -> int:
    """Return the last result of a written procedure; the largest number if it was left at hundreds."""
    last = procedure.rstrip(";").rsplit(" ", 1)[1]
    return LARGEST if last == _OVER else int(last)


@dataclass(frozen=True)
class Demonstration:
    """One answered problem under an instruction and sometimes a hint."""

    instruction: str
    hint: str
    problem: Problem
    response: str

    @property
    def message(self) -> str:
        """The user's message, as laid out by `MathEnvironment.messages`."""
        question = f"{self.instruction}\n\n{self.problem.text}"
        return f"{self.hint}\n\n{question}" if self.hint else question


class Demonstrator:
    """Write demonstrations over the training problems, none of them told as a story.

    Args:
        remembers: chance that a carry or a borrow is remembered.
    """

    def __init__(self, remembers: float = REMEMBERS) -> None:
        self.remembers = remembers

    def sample(self, rng: random.Random) -> Demonstration:
        """Draw a problem, and act it out under an instruction with at most one request."""
        drawn = problem(rng, rng.choices(RUNGS, MIX)[0], split="train")
        request = drawn_request(rng)
        hinted = request is not None and rng.random() < HINTED
        return Demonstration(
            GRAMMAR.instruction(rng, INITIAL_INSTRUCTION, None if hinted else request),
            request.text if request is not None and hinted else "",
            drawn,
            act(rng, drawn, request.way if request else None, self.remembers),
        )


def drawn_request(rng: random.Random) -> Request[Way] | None:
    """Draw a request, or None."""
    kind = rng.choices(list(REQUESTS), list(REQUESTS.values()))[0]
    if kind == "none":
        return None
    return GRAMMAR.forbidding(rng) if kind == "forbidding" else GRAMMAR.request(rng, Way(kind))


def act(rng: random.Random, problem: Problem, way: Way | None, remembers: float) -> str:
    """Return one response: at once, or after a written procedure."""
    if way is not None and way in WRITTEN and rng.random() < FOLLOWS:
        written = procedure(problem, way, _kept(rng, remembers))
        return f"{written} \\boxed{{{result_of(written)}}}"
    answer = problem.at_once
    if way is Way.AT_ONCE and rng.random() < CARELESS:
        answer += rng.choice((-1, 1)) * rng.choice((1, 2, 10))
    return f"\\boxed{{{answer}}}"


def _kept(rng: random.Random, remembers: float) -> Iterator[bool]:
    while True:
        yield rng.random() < remembers
