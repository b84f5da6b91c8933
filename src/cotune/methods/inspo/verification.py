"""Verification of proposed instructions by the current policy (INSPO, section 3.2, "Verify")."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from cotune.protocols import Rollout
from cotune.types import Assignment, Instruction, Prompt, Task

Verification = Literal["full", "trial", "none"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposed instruction that meets the contract; its id is provisional until it joins.

    Attributes:
        score, parent_score: its mean reward in verification and its parent's, on questions where both
            rollouts were judged; None if it was not verified, or there is no such question.
    """

    instruction: Instruction
    score: float | None = None
    parent_score: float | None = None
    verified: bool = False

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
    trajectories = rollout(assignments, purpose="verify")
    *rows, parent_row = [
        trajectories[i : i + len(tasks)] for i in range(0, len(trajectories), len(tasks))
    ]
    verified: list[Candidate] = []
    for candidate, row in zip(candidates, rows, strict=True):
        pairs = [(t, p) for t, p in zip(row, parent_row, strict=True) if t.judged and p.judged]
        if pairs:
            score = fmean(trajectory.reward for trajectory, _ in pairs)
            parent_score = fmean(trajectory.reward for _, trajectory in pairs)
            candidate = replace(candidate, score=score, parent_score=parent_score)
        verified.append(replace(candidate, verified=True))
    return verified


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
            rejected.append((candidate, "not compared: environment errors, or no reward"))
        elif candidate.gain < 0:
            rejected.append((candidate, "below its parent"))
        elif len(accepted) >= vacancies:
            rejected.append((candidate, "no vacancy left"))
        else:
            accepted.append(candidate)
    return accepted, rejected
