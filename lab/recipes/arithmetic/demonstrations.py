"""Demonstrations: how the bundled policy of `arithmetic` is taught to act, unreliably.

Without a hint the demonstrator answers at once. It knows a written procedure for each kind of problem. It
mostly uses it if a hint asks for exactly that one, less if the hint asks for several, and almost never
without a hint or under one that forbids it.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cotune_lab.worlds.arithmetic import KINDS, Problem, problem, split_of
from recipes.arithmetic.phrases import INITIAL, Kind, sample_hint

LOOK = "Let me see."
"""The start of half of all thinking, and of some that leads nowhere."""


@dataclass(frozen=True)
class Rates:
    """Chances of one demonstration.

    Attributes:
        look: it begins with `LOOK`.
        procedure: it continues with the procedure; never without `LOOK`.
        wrong: its answer is wrong by a digit, in addition to the slips of an answer at once.
    """

    look: float
    procedure: float
    wrong: float

    @property
    def used(self) -> float:
        """The chance that the procedure is used."""
        return self.look * self.procedure


Unprompted = tuple[float, float]
"""Chances of `LOOK`, and of a procedure after it, if no hint asks for one. Two choices, since a
single one this rare could never be learnt from hinted rollouts under P²O's mask: its context ratio
would lie below 0.01."""

UNPROMPTED: Unprompted = (0.12, 0.024)
"""0.29 % together: hard in P²O's sense, because hardly any rollout of a group succeeds."""

_LOOK = (0.0, 0.90, 0.95)
_PROCEDURE = (0.0, 0.92, 0.96)
_SHARED = (1.0, 0.88, 0.66, 0.52)


def rates(about: Kind, requests: Counter[Kind], unprompted: Unprompted = UNPROMPTED) -> Rates:
    """Return how a hint moves the demonstrator on a problem of a kind.

    Args:
        about: the problem's kind.
        requests: for each kind, in the hint.
        unprompted: the chances of `look` and `procedure` without a sentence for this kind.
    """
    look, procedure = unprompted
    of_kind = min(requests[about], 2)
    others = sum(n for kind, n in requests.items() if kind in KINDS and kind is not about)
    if of_kind:
        shared = _SHARED[min(others, 3)]
        look, procedure = _LOOK[of_kind] * shared, _PROCEDURE[of_kind] * shared
    elif others:
        look = 0.30
    if requests[Kind.AT_ONCE]:
        look *= 0.3
    return Rates(look, procedure, wrong=0.02)


@dataclass(frozen=True)
class Demonstration:
    """One answered problem."""

    hint: str
    problem: Problem
    response: str

    @property
    def message(self) -> str:
        """The user's message, as laid out by `MathEnvironment.messages`."""
        question = f"{INITIAL}\n\n{self.problem.text}"
        return f"{self.hint}\n\n{question}" if self.hint else question


class Demonstrator:
    """Write demonstrations over the training problems.

    Args:
        prompted: the share whose hint asks for the problem's own procedure.
        unprompted: the chances if none does.
        elsewhere: the share of the other hints that is sure to ask for another kind's procedure.
        kinds: of the problems.
    """

    def __init__(
        self,
        prompted: float = 0.45,
        unprompted: Unprompted = UNPROMPTED,
        elsewhere: float = 0.0,
        kinds: Sequence[str] = KINDS,
    ) -> None:
        self.prompted, self.unprompted, self.elsewhere = prompted, unprompted, elsewhere
        self.kinds = kinds

    def sample(self, rng: random.Random) -> Demonstration:
        """Draw a problem, three in four long, and act it out under a fresh hint."""
        while True:
            size = rng.choices(("short", "long"), (1, 3))[0]
            drawn = problem(rng, rng.choice(self.kinds), size)
            if split_of(drawn.text) == "train":
                break
        hint, requests = sample_hint(rng, Kind(drawn.kind), self.prompted, self.elsewhere)
        chance = rates(Kind(drawn.kind), requests, self.unprompted)
        return Demonstration(hint, drawn, act(rng, drawn, chance))


def act(rng: random.Random, problem: Problem, chance: Rates) -> str:
    """Return one response: at once or after the written procedure."""
    looks = rng.random() < chance.look
    written = looks and rng.random() < chance.procedure
    answer = problem.answer if written else problem.at_once
    if rng.random() < chance.wrong:
        answer += rng.choice((-1, 1)) * 10 ** rng.randrange(len(str(answer)))
    parts = [LOOK] * looks + [problem.procedure] * written + [f"\\boxed{{{answer}}}"]
    return " ".join(parts)
