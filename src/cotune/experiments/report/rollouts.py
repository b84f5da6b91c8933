"""Rollouts of a report: groups side by side from training, single ones of an evaluation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cotune.run.json_files import Row
from cotune.run.run_dir import RunDir

MOST_GROUPS = 3  # of a step that a page shows
MOST_COLUMNS = 8  # rollouts of a group that it shows
MOST_TURNS = 10  # of a rollout on the page, so that it stays small
_EVALUATED = 10  # rollouts of an evaluation that it shows
_EVALUATED_BEST = 3  # of these


@dataclass(frozen=True)
class Group:
    """The rollouts of one question in one training step.

    Attributes:
        rollouts: as stored, lowest rewards first, MOST_COLUMNS of them at most.
        rewards: all rewards, sorted.
        hinted: number of rollouts that were sampled under a hint.
    """

    step: int
    rollouts: list[Row]
    rewards: list[float]
    hinted: int

    @property
    def mixed(self) -> bool:
        """Rewards differ: only then does the group have a gradient."""
        return self.rewards[0] < self.rewards[-1]

    @property
    def mean(self) -> float:
        return math.fsum(self.rewards) / len(self.rewards)

    @property
    def instructions(self) -> list[str]:
        """The texts that its rollouts were sampled under, without hints."""
        return list(dict.fromkeys(row["sampled"]["instruction"] for row in self.rollouts))


def some_groups(run: RunDir) -> list[Group]:
    """Choose groups of the last stored training step and of the first: mixed rewards first, then a failed one."""
    steps = [step for step, purpose in run.trajectory_files() if purpose == "train"]
    chosen: list[Group] = []
    for step in dict.fromkeys((*steps[-1:], *steps[:1])):
        groups = sorted(_groups(step, run.read_trajectories(step, "train")), key=_interest)
        failed = [group for group in groups[MOST_GROUPS - 1 :] if group.rewards[-1] <= 0]
        chosen += groups[: MOST_GROUPS - 1] + (failed or groups[MOST_GROUPS - 1 :])[:1]
    return chosen


def _groups(step: int, rows: Sequence[Row]) -> list[Group]:
    by_group: dict[int, list[Row]] = {}
    for row in sorted(rows, key=_reward):
        by_group.setdefault(row["group"], []).append(row)
    half = MOST_COLUMNS // 2
    return [
        Group(
            step,
            group if len(group) <= MOST_COLUMNS else [*group[:half], *group[-half:]],
            [_reward(row) for row in group],
            sum(bool(row["sampled"]["hint"]) for row in group),
        )
        for group in by_group.values()
    ]


def _interest(group: Group) -> tuple[bool, bool, float]:
    """Sort groups: mixed ones first, of these hinted ones, of these the most even."""
    middle = (group.rewards[0] + group.rewards[-1]) / 2
    return not group.mixed, not group.hinted, abs(group.mean - middle)


def _reward(row: Row) -> float:
    return float(row["reward"] or 0.0)


def some_evaluated(run: RunDir) -> tuple[list[Row], str]:
    """Choose rollouts of the evaluation after training, else of the newest one; say which they are."""
    files = [file for file in run.trajectory_files() if file[1].startswith("evaluate")]
    if not files:
        return [], ""
    rank = {"evaluate_after": 2, "evaluate_during": 1}
    step, purpose = max(files, key=lambda file: (rank.get(file[1], 0), file))
    rows = sorted(run.read_trajectories(step, purpose), key=_reward)
    chosen = rows
    if len(rows) > _EVALUATED:
        chosen = rows[: _EVALUATED - _EVALUATED_BEST] + rows[-_EVALUATED_BEST:]
    # Recorded under the step that follows.
    when = {
        "evaluate_before": "the evaluation before training",
        "evaluate_after": "the last evaluation",
    }.get(purpose, f"the evaluation after step {step - 1}")
    return chosen, f"{len(chosen)} of the {len(rows)} rollouts of {when}, lowest rewards first."
