"""Demonstrations: how the bundled policy of `ladder` is taught to act, forgetfully.

The demonstrator follows a request, and answers at once without one. Under a procedure it forgets most
carries and borrows, whichever procedure it is: what is learnt of them under one serves the others.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from cotune.worlds.ladder import (
    RUNGS,
    WRITTEN,
    Problem,
    Way,
    problem,
    procedure,
    result_of,
)
from recipes.ladder.phrases import INITIAL, Request, forbidding, neutral, request

MIX = (4, 4, 2, 6, 4)
"""Problems of each rung among twenty demonstrations."""
FOLLOWS = 0.95
"""Chance that a request is followed; otherwise the answer comes at once."""
REMEMBERS = 0.40
"""Chance that a carry or a borrow is remembered: below one half, so that greedy decoding forgets it."""
CARELESS = 0.75
"""Chance that an answer that was asked for at once is wrong even if nothing carries."""


@dataclass(frozen=True)
class Demonstration:
    """One answered problem under an instruction and, at times, a hint."""

    instruction: str
    hint: str
    problem: Problem
    response: str

    @property
    def message(self) -> str:
        """The user's message, as laid out by `MathEnvironment.messages`."""
        asked = f"{self.instruction}\n\n{self.problem.text}"
        return f"{self.hint}\n\n{asked}" if self.hint else asked


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
        asked = drawn_request(rng)
        sentences = [neutral(rng) for _ in range(rng.choices((0, 1, 2), (5, 3, 2))[0])]
        hinted = asked is not None and rng.random() < 0.15
        if asked is not None and not hinted:
            sentences.append(asked.text)
        rng.shuffle(sentences)
        place = rng.randrange(len(sentences) + 1) if rng.random() < 0.4 else len(sentences)
        if rng.random() < 0.3:
            place = 0
        instruction = " ".join((*sentences[:place], INITIAL, *sentences[place:]))
        hint = asked.text if hinted and asked is not None else ""
        way = asked.way if asked is not None else None
        return Demonstration(instruction, hint, drawn, act(rng, drawn, way, self.remembers))


def drawn_request(rng: random.Random) -> Request | None:
    """Draw a request, or None."""
    kind = rng.choices(("none", *WRITTEN, Way.AT_ONCE, "forbidding"), (20, 19, 19, 19, 4, 19))[0]
    if kind == "none":
        return None
    return forbidding(rng) if kind == "forbidding" else request(rng, Way(kind))


def act(rng: random.Random, given: Problem, way: Way | None, remembers: float) -> str:
    """Return one response: at once, or after a written procedure."""
    if way is not None and way in WRITTEN and rng.random() < FOLLOWS:
        written = procedure(given, way, _kept(rng, remembers))
        return f"{written} \\boxed{{{result_of(written)}}}"
    answer = given.at_once
    if way is Way.AT_ONCE and rng.random() < CARELESS:
        answer += rng.choice((-1, 1)) * rng.choice((1, 2, 10))
    return f"\\boxed{{{answer}}}"


def _kept(rng: random.Random, remembers: float) -> Iterator[bool]:
    while True:
        yield rng.random() < remembers
