"""Verification of proposed instructions by the current policy (INSPO, section 3.2, "Verify")."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from cotune.methods.method import SOLVED_AT
from cotune.protocols import Rollout
from cotune.types import Assignment, Instruction, Prompt, Task

Verification = Literal["full", "trial", "none"]
Rewards = list[float | None]
"""By question; None for a rollout that ended in an environment error."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposed instruction that meets the contract; its id is provisional until it joins.

    Attributes:
        score, parent_score: its mean reward in verification and its parent's, on questions where neither's rollout
            ended in an environment error; None if it was not verified, or there is no such question.
        unrewarded: whether every reward in verification, its parent's too, was the same failure, which says
            nothing of either.
    """

    instruction: Instruction
    score: float | None = None
    parent_score: float | None = None
    verified: bool = False
    unrewarded: bool = False

    @property
    def gain(self) -> float:
        """Return the score minus the parent's; 0 if there are none."""
        if self.score is None or self.parent_score is None:
            return 0.0
        return self.score - self.parent_score


def verify(
    candidates: Sequence[Candidate], parent: Instruction, tasks: Sequence[Task], rollout: Rollout
) -> list[Candidate]:
    """Return the candidates with their scores and their parent's (Algorithm 1, line 21).

    One sampled rollout for each candidate and question, and for their parent, all in one call so that an engine can
    batch them. Each rollout is its own group, since nothing is compared within groups here.
    """
    contestants = [*(candidate.instruction for candidate in candidates), parent]
    assignments = [
        Assignment(task, prompt := Prompt(c.text), prompt, c.id, i * len(tasks) + j)
        for i, c in enumerate(contestants)
        for j, task in enumerate(tasks)
    ]
    rewards = [t.reward if t.judged else None for t in rollout(assignments, purpose="verify")]
    *rows, parent_rewards = [
        rewards[start : start + len(tasks)] for start in range(0, len(rewards), len(tasks))
    ]
    return [_score(c, row, parent_rewards) for c, row in zip(candidates, rows, strict=True)]


def _score(candidate: Candidate, rewards: Rewards, parent_rewards: Rewards) -> Candidate:
    """Score a candidate on the questions that both it and its parent tried."""
    pairs = [
        (reward, parent_reward)
        for reward, parent_reward in zip(rewards, parent_rewards, strict=True)
        if reward is not None and parent_reward is not None
    ]
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


def accept(
    candidates: Sequence[Candidate], vacancies: int
) -> tuple[list[Candidate], list[tuple[Candidate, str]]]:
    """Return the best candidates, at most one per vacancy, and the others with the reason.

    One that equals its parent is accepted; equal and unverified candidates are taken in the order in which they were
    proposed.
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
