"""Verification of proposed instructions by the current policy (INSPO, section 3.2, "Verify")."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from cotune.protocols import Rollout
from cotune.types import Assignment, Instruction, Prompt, Task


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposed instruction that meets the contract.

    Attributes:
        id: provisional id; an instruction gets its final one when it joins.
        parent: id of the instruction it was derived from.
        origin: kind of the proposer that wrote it, or "rewrite".
        score: mean reward in verification; None if it was not verified.
        parent_score: its parent's score on the same questions.
        shown: ids of the questions that its author, or an ancestor's, was shown.
    """

    id: str
    text: str
    parent: str
    origin: str
    critique: str = ""
    score: float | None = None
    parent_score: float | None = None
    shown: tuple[str, ...] = ()

    @property
    def gain(self) -> float:
        """Return the score minus the parent's; 0 if it was not verified."""
        if self.score is None or self.parent_score is None:
            return 0.0
        return self.score - self.parent_score


def verify(
    candidates: Sequence[Candidate], parent: Instruction, tasks: Sequence[Task], rollout: Rollout
) -> list[Candidate]:
    """Return the candidates with their scores and their parent's, all on the same questions.

    One rollout for each candidate and question at the policy's sampling temperature, all in one
    call so that an engine can batch them. Each rollout is its own group, since nothing is compared
    within groups here.
    """
    if not candidates or not tasks:
        raise ValueError(f"{len(candidates)} candidates, {len(tasks)} tasks; expected one and more")
    contestants = [(c.id, c.text) for c in candidates] + [(parent.id, parent.text)]
    assignments = [
        Assignment(task, prompt := Prompt(text), prompt, identity, i * len(tasks) + j)
        for i, (identity, text) in enumerate(contestants)
        for j, task in enumerate(tasks)
    ]
    rewards = [t.reward for t in rollout(assignments, purpose="verify")]
    if len(rewards) != len(assignments):
        raise ValueError(f"{len(rewards)} trajectories came; expected {len(assignments)}")
    *scores, parent_score = (
        fmean(rewards[i : i + len(tasks)]) for i in range(0, len(rewards), len(tasks))
    )
    return [
        replace(candidate, score=score, parent_score=parent_score)
        for candidate, score in zip(candidates, scores, strict=True)
    ]


def accept(
    candidates: Sequence[Candidate], vacancies: int
) -> tuple[list[Candidate], list[tuple[Candidate, str]]]:
    """Return the best candidates, at most one per vacancy, and the others with the reason.

    A candidate below its parent is rejected, one that equals it is not; equal and unverified
    candidates are taken in the order in which they were proposed.
    """
    accepted: list[Candidate] = []
    rejected: list[tuple[Candidate, str]] = []
    for candidate in sorted(candidates, key=lambda c: -(c.score or 0.0)):
        if candidate.gain < 0:
            rejected.append((candidate, "below its parent"))
        elif len(accepted) >= vacancies:
            rejected.append((candidate, "no vacancy left"))
        else:
            accepted.append(candidate)
    return accepted, rejected
