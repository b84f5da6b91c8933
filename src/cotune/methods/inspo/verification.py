"""Verification of proposed instructions by the current policy (INSPO, section 3.2, "Verify")."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean
from typing import Literal

from cotune.methods.scores import SOLVED_AT
from cotune.protocols import Rollout
from cotune.types import Assignment, Instruction, Prompt, Task

Verification = Literal["full", "racing", "trial", "none"]
RACE_ERROR = 0.05
"""The chance that racing errs for a candidate that equals its parent."""
_BLOCK = 8  # questions between two looks of a race
Rewards = list[float | None]
"""By question; None for a rollout that ended in an environment error."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposed instruction that meets the contract.

    Attributes:
        instruction: its id is provisional until it joins.
        score: mean reward in verification, on questions where neither its rollout nor its parent's ended in
            an environment error; None if it was not verified, or there is no such question.
        parent_score: its parent's score on the same questions.
        verified: whether it was verified.
        unrewarded: whether every reward in verification, its parent's too, was the same failure, which says
            nothing of either.
    """

    instruction: Instruction
    score: float | None = None
    parent_score: float | None = None
    verified: bool = False
    unrewarded: bool = False

    @property
    def id(self) -> str:
        return self.instruction.id

    @property
    def gain(self) -> float:
        """Return the score minus the parent's; 0 if there are none."""
        if self.score is None or self.parent_score is None:
            return 0.0
        return self.score - self.parent_score


def verify(
    candidates: Sequence[Candidate],
    parent: Instruction,
    tasks: Sequence[Task],
    rollout: Rollout,
    race_for: int | None = None,
) -> tuple[list[Candidate], int]:
    """Return the candidates with their scores and their parent's, and the rollouts made (Algorithm 1, line 21).

    One rollout for each candidate and question at the policy's sampling temperature, all in one call so that
    an engine can batch them. Each rollout is its own group, since nothing is compared within groups here.

    A race goes through the questions a block at a time. A candidate stops when a paired test says that it is
    below its parent or, with a vacancy for every candidate that is left, above it.

    Args:
        race_for: how many candidates of a race can be accepted; None for no race.
    """
    block_size = len(tasks) if race_for is None else _BLOCK
    looks = math.ceil(len(tasks) / block_size) - 1  # the last block ends the verification
    rewards: dict[str, Rewards] = {id: [] for id in (*(c.id for c in candidates), parent.id)}
    undecided = list(candidates)
    paid = 0
    for start in range(0, len(tasks), block_size):
        block = tasks[start : start + block_size]
        contestants = [*(c.instruction for c in undecided), parent]
        for identity, row in _roll_out(contestants, block, paid, rollout).items():
            rewards[identity] += row
        paid += len(contestants) * len(block)
        if race_for is not None and start + block_size < len(tasks):
            undecided = _keep_undecided(undecided, rewards, parent, RACE_ERROR / looks, race_for)
        if not undecided:
            break
    return [_score(c, rewards, parent) for c in candidates], paid


def _roll_out(
    contestants: Sequence[Instruction],
    tasks: Sequence[Task],
    first_group: int,
    rollout: Rollout,
) -> dict[str, Rewards]:
    """Return each contestant's rewards on the questions, by its id."""
    assignments = [
        Assignment(task, prompt := Prompt(c.text), prompt, c.id, first_group + i * len(tasks) + j)
        for i, c in enumerate(contestants)
        for j, task in enumerate(tasks)
    ]
    rewards = [t.reward if t.judged else None for t in rollout(assignments, purpose="verify")]
    rows = [rewards[i : i + len(tasks)] for i in range(0, len(rewards), len(tasks))]
    return {contestant.id: row for contestant, row in zip(contestants, rows, strict=True)}


def _pairs(candidate: Rewards, parent: Rewards) -> list[tuple[float, float]]:
    """Return a candidate's and its parent's rewards on the questions that both tried."""
    both = zip(candidate, parent[: len(candidate)], strict=True)
    return [(a, b) for a, b in both if a is not None and b is not None]


def _score(candidate: Candidate, rewards: Mapping[str, Rewards], parent: Instruction) -> Candidate:
    pairs = _pairs(rewards[candidate.id], rewards[parent.id])
    if not pairs:
        return replace(candidate, verified=True)
    scores, parent_scores = zip(*pairs, strict=True)
    return replace(
        candidate,
        verified=True,
        score=fmean(scores),
        parent_score=fmean(parent_scores),
        unrewarded=len({*scores, *parent_scores}) == 1 and scores[0] < SOLVED_AT,
    )


def _keep_undecided(
    candidates: Sequence[Candidate],
    rewards: Mapping[str, Rewards],
    parent: Instruction,
    error: float,
    vacancies: int,
) -> list[Candidate]:
    """Return the candidates whose verification continues after a look; `error` is that of one look."""
    base = rewards[parent.id]
    gains = {c.id: [a - b for a, b in _pairs(rewards[c.id], base)] for c in candidates}
    going = [c for c in candidates if chance_of_less(gains[c.id]) > error]
    if len(going) <= vacancies:
        going = [c for c in going if chance_of_less([-gain for gain in gains[c.id]]) > error]
    return going


def chance_of_less(gains: Sequence[float]) -> float:
    """Return the probability of a sum this low if the sign of each difference were random.

    The sign-flip test of paired differences by its normal approximation, with a correction for
    continuity; 1 for a sum of 0 or more.

    >>> round(chance_of_less([-1.0] * 5), 3)  # exactly: 1/32
    0.037
    """
    total = sum(gains)
    sizes = [abs(gain) for gain in gains if gain]
    if total >= 0:
        return 1.0
    spread = math.sqrt(sum(size * size for size in sizes))
    return NormalDist().cdf((total + min(sizes)) / spread)


def accept(
    candidates: Sequence[Candidate], vacancies: int
) -> tuple[list[Candidate], list[tuple[Candidate, str]]]:
    """Return the best candidates, at most one per vacancy, and the others with the reason.

    A candidate below its parent is rejected, one that equals it is not; equal and unverified
    candidates are taken in the order in which they were proposed. One that could not be compared, because of
    environment errors, is rejected.
    """
    accepted: list[Candidate] = []
    rejected: list[tuple[Candidate, str]] = []
    for candidate in sorted(candidates, key=lambda c: -(c.score or 0.0)):
        if candidate.verified and candidate.score is None:
            rejected.append((candidate, "not compared: environment errors"))
        elif candidate.gain < 0:
            rejected.append((candidate, "below its parent"))
        elif len(accepted) >= vacancies:
            rejected.append((candidate, "no vacancy left"))
        else:
            accepted.append(candidate)
    return accepted, rejected
