"""A trial: candidates are compared with their parents within training batches, at no rollout beyond them.

INSPO verifies candidates on questions of its buffer, with rollouts that train nothing. A trial takes groups of the next
training batches instead: half of a group is sampled under a candidate, half under its parent, with one advantage over
the group, as in mixed groups. All of its rollouts train the policy, each on its own instruction or on the method's
`target`. At most half of a batch's groups, or one, are on trial, so a bad candidate costs at most a quarter of the
batch; it cannot bias the gradient on its parent, because the other half of a group moves only the baseline.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean

from cotune.methods.inspo.population import Member
from cotune.protocols import State
from cotune.types import Instruction, Task, Trajectory

TRIAL_ERROR = 0.2
"""The chance that the test ever accepts a candidate that equals its parent, and that it ever rejects one."""
TRIAL_SHARE = 0.5
"""The part of a batch's groups that is on trial, at most."""
_BETS = (0.5, 1.0, 2.0, 4.0)


@dataclass(slots=True)
class Contestant:
    """A candidate on trial.

    Attributes:
        member: the candidate with what was observed under it; it is in no population yet.
        parent: what it is compared with.
        groups: of each group of its trial the mean reward under it, the one under its parent, and the range of
            the group's rewards.
    """

    member: Member
    parent: Instruction
    groups: list[tuple[float, float, float]] = field(
        default_factory=list[tuple[float, float, float]]
    )

    @property
    def instruction(self) -> Instruction:
        return self.member.instruction

    @property
    def scores(self) -> tuple[float | None, float | None]:
        """Return the mean reward in its groups, and its parent's; None before the first."""
        if not self.groups:
            return None, None
        scores, parent_scores, _ = zip(*self.groups, strict=True)
        return fmean(scores), fmean(parent_scores)

    def share_group(self, size: int) -> list[Instruction]:
        """Return the instructions of a group's rollouts: the parent's half, the larger one, comes first."""
        return [self.parent] * (size - size // 2) + [self.instruction] * (size // 2)

    def observe(self, group: Sequence[Trajectory]) -> None:
        """Take in a group of its trial; one without a judged rollout on both sides says nothing.

        As many rollouts of each count, the first ones: a mean of two is not spread as a mean of three is, and the
        test needs halves that could change places.
        """
        judged = [t for t in group if t.judged]
        rewards = [t.reward for t in judged if t.assignment.instruction_id == self.member.id]
        parent_rewards = [t.reward for t in judged if t.assignment.instruction_id == self.parent.id]
        if count := min(len(rewards), len(parent_rewards)):
            rewards = rewards[:count]
            parent_rewards = parent_rewards[:count]
            spread = max(*rewards, *parent_rewards) - min(*rewards, *parent_rewards)
            self.groups.append((fmean(rewards), fmean(parent_rewards), spread))

    def verdict(self, most_groups: int) -> str | None:
        """Return "" if it is accepted, why it is rejected, or None if that is not decided yet.

        A test may decide after any group; after `most_groups` the mean does. As in full verification, a candidate
        that equals its parent is accepted: a population needs instructions that the policy could still grow into.
        """
        gains = self._scaled_gains()
        if evidence(gains) >= 1 / TRIAL_ERROR:
            return ""
        if evidence([-gain for gain in gains]) >= 1 / TRIAL_ERROR:
            return "below its parent"
        if len(gains) >= most_groups:
            return "" if sum(gains) >= 0 else "below its parent"
        return None

    def _scaled_gains(self) -> list[float]:
        """Return the leads over the parent in units of the largest range of rewards in a group so far.

        A range is the same if the halves change places, so that signs stay as likely as the test assumes.
        """
        gains: list[float] = []
        largest = 0.0
        for score, parent_score, spread in self.groups:
            largest = max(largest, spread)
            gains.append((score - parent_score) / largest if largest else 0.0)
        return gains


def evidence(gains: Sequence[float]) -> float:
    """Return the evidence that gains, each in [-1, 1], are positive: an e-value.

    If each sign were random, it would reach 1 / a at any time with a chance of at most a (Ville's inequality),
    so it may be looked at after every group. It is the mean, over several stakes, of the wealth of a gambler who bets
    on positive signs at fair odds (Ramdas et al., arXiv 2210.01948).

    >>> evidence([])
    1.0
    >>> [evidence([1.0] * n) > 20 for n in (5, 8)]
    [False, True]
    """
    total = sum(gains)
    wealth = [
        math.exp(bet * total - sum(math.log(math.cosh(bet * gain)) for gain in gains))
        for bet in _BETS
    ]
    return fmean(wealth)


class Trial:
    """The candidates of an evolution phase that are not decided yet, and the phase's counts for its event."""

    def __init__(self, contestants: Sequence[Contestant], counts: Mapping[str, int]) -> None:
        self.contestants = list(contestants)
        self.counts = dict(counts)
        self.parents = list(dict.fromkeys(c.parent.id for c in contestants))

    @property
    def ids(self) -> set[str]:
        """Return the ids that its groups are sampled under: candidates and parents, gone ones too."""
        return {id for c in self.contestants for id in (c.member.id, c.parent.id)}

    def draw_groups(self, tasks: Sequence[Task], key: str) -> dict[int, Contestant]:
        """Choose groups of a batch, whose questions are `tasks`, and the candidate that each is a trial of.

        The candidate with the fewest groups comes first. None is tried on a question that its author, or an
        ancestor's, was shown.
        """
        most_groups = max(1, int(len(tasks) * TRIAL_SHARE))
        counts = {c.member.id: len(c.groups) for c in self.contestants}
        trial_groups: dict[int, Contestant] = {}
        for group in random.Random(key).sample(range(len(tasks)), len(tasks)):
            unshown = [c for c in self.contestants if tasks[group].id not in c.instruction.shown]
            if unshown and len(trial_groups) < most_groups:
                chosen = min(unshown, key=lambda c: counts[c.member.id])
                trial_groups[group] = chosen
                counts[chosen.member.id] += 1
        return trial_groups

    def observe(
        self, trajectories: Sequence[Trajectory], rewards_by_id: Mapping[str, Sequence[float]]
    ) -> None:
        """Take in a step's rollouts, and the rewards by instruction id that `Population.observe` takes."""
        groups: defaultdict[int, list[Trajectory]] = defaultdict(list)
        for trajectory in trajectories:
            groups[trajectory.assignment.group].append(trajectory)
        for contestant in self.contestants:
            if rewards := rewards_by_id.get(contestant.member.id):
                contestant.member.observe(rewards)
                for group in groups.values():
                    contestant.observe(group)

    def decide(self, most_groups: int, ends: bool) -> list[tuple[Contestant, str]]:
        """Return the candidates that are decided, and why each is rejected; "" for one that is accepted.

        Args:
            ends: whether the trial ends undecided, since nothing evolves any more.
        """
        decided: list[tuple[Contestant, str]] = []
        for contestant in self.contestants:
            verdict = contestant.verdict(most_groups)
            if verdict is None and ends:
                verdict = f"undecided after {len(contestant.groups)} groups"
            if verdict is not None:
                decided.append((contestant, verdict))
        over = {contestant.member.id for contestant, _ in decided}
        self.contestants = [c for c in self.contestants if c.member.id not in over]
        return decided

    def state_dict(self) -> State:
        contestants = [
            {"member": c.member.state_dict(), "parent": asdict(c.parent), "groups": c.groups}
            for c in self.contestants
        ]
        return {"contestants": contestants, "counts": self.counts, "parents": self.parents}

    @classmethod
    def restore(cls, state: State, restore_member: Callable[[State], Member]) -> "Trial":
        """Return a trial from its `state_dict`."""
        contestants = [
            Contestant(
                restore_member(saved["member"]),
                Instruction(**saved["parent"]),
                [(score, parent, spread) for score, parent, spread in saved["groups"]],
            )
            for saved in state["contestants"]
        ]
        trial = cls(contestants, state["counts"])
        trial.parents = list(state["parents"])
        return trial
