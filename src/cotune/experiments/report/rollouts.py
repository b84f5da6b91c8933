"""Rollouts of a report: groups side by side from training, single ones of an evaluation."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cotune.run.json_files import Row
from cotune.run.run_dir import RunDir

MOST_GROUPS, MOST_COLUMNS = 6, 8
MOST_TURNS = 10  # of a rollout on the page, so that it stays small
_EVALUATED, _EVALUATED_BEST = 10, 3  # rollouts of an evaluation that are shown; best ones of them
_SEARCHED = 4  # files searched for a group with hints


@dataclass(frozen=True, slots=True)
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
    """Choose groups of the last stored training step and of the first: mixed rewards first.

    If the run has hints, one of the groups has some, from the newest file with such a group.
    """
    steps = [step for step, purpose in run.trajectory_files() if purpose == "train"]
    if not steps:
        return []
    by_step = {
        step: _groups(run.read_trajectories(step, "train"))
        for step in {steps[0], *steps[-_SEARCHED:]}
    }
    chosen: list[tuple[int, list[Row]]] = []

    def take(step: int, wanted: Callable[[list[Row]], bool], most: int) -> None:
        groups = [g for g in by_step[step] if wanted(g) and (step, g) not in chosen]
        chosen.extend((step, group) for group in sorted(groups, key=_unevenness)[:most])

    take(steps[-1], _is_mixed, 2)
    hinted = [step for step in by_step if any(map(_is_hinted, by_step[step]))]
    if hinted:
        take(max(hinted), lambda group: _is_hinted(group) and _is_mixed(group), 1)
    take(steps[-1], _has_failed, 1)
    if len(steps) > 1:
        take(steps[0], _is_mixed, 1)
        take(steps[0], _has_failed, 1)
    if not chosen:
        take(steps[-1], lambda group: True, 2)
    return [_group(step, rows) for step, rows in chosen[:MOST_GROUPS]]


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    by_group: dict[int, list[Row]] = {}
    for row in rows:
        by_group.setdefault(row["group"], []).append(row)
    return list(by_group.values())


def _reward(row: Row) -> float:
    return float(row["reward"] or 0.0)


def _is_mixed(group: Sequence[Row]) -> bool:
    return len(set(map(_reward, group))) > 1


def _has_failed(group: Sequence[Row]) -> bool:
    return not _is_mixed(group) and _reward(group[0]) <= 0


def _is_hinted(group: Sequence[Row]) -> bool:
    return any(row["sampled"]["hint"] for row in group)


def _unevenness(group: Sequence[Row]) -> float:
    """Return how far the mean is from the middle of the rewards; even groups show most."""
    rewards = [_reward(row) for row in group]
    return abs(math.fsum(rewards) / len(rewards) - (min(rewards) + max(rewards)) / 2)


def _group(step: int, rows: Sequence[Row]) -> Group:
    ordered = sorted(rows, key=_reward)
    half = MOST_COLUMNS // 2
    some = ordered if len(ordered) <= MOST_COLUMNS else [*ordered[:half], *ordered[-half:]]
    hinted = sum(bool(row["sampled"]["hint"]) for row in rows)
    return Group(step, some, [_reward(row) for row in ordered], hinted)


def some_evaluated(run: RunDir) -> tuple[list[Row], str]:
    """Choose rollouts of the evaluation after training, else of the newest one; say which they are."""
    files = [file for file in run.trajectory_files() if file[1].startswith("evaluate")]
    if not files:
        return [], ""
    rank = {"evaluate_after": 2, "evaluate_during": 1}
    step, purpose = max(files, key=lambda file: (rank.get(file[1], 0), file))
    rows = run.read_trajectories(step, purpose)
    by_reward = sorted(rows, key=_reward)
    chosen = by_reward
    if len(rows) > _EVALUATED:
        chosen = by_reward[: _EVALUATED - _EVALUATED_BEST] + by_reward[-_EVALUATED_BEST:]
    # Recorded under the step that follows.
    when = {
        "evaluate_before": "the evaluation before training",
        "evaluate_after": "the last evaluation",
    }.get(purpose, f"the evaluation after step {step - 1}")
    source = f"{len(chosen)} of the {len(rows)} rollouts of {when}, lowest rewards first."
    return chosen, source
