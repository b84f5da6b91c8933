"""Rollouts of a report: groups side by side from training, and single ones of an evaluation."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cotune.experiments.report.tokens import (
    OBSERVED,
    OWN,
    Piece,
    read_tokenizer,
    role_runs,
    shortened,
    turns_in_tokens,
)
from cotune.run.json_files import Row
from cotune.run.run_dir import RunDir

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_GROUPS, MOST_COLUMNS = 6, 8
_LOOKED_AT = 4  # files searched for a group with hints
# What a page shows of a turn and of a rollout: its size stays bounded at any context length.
_OWN_TOKENS, _READ_TOKENS, _ROLLOUT_TOKENS, _CHARACTERS = 400, 160, 1200, 2000


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """One turn: what the policy wrote and what it read.

    Attributes:
        action: what the environment took it for.
        error: what was wrong with it; "".
        own, read: the tokens; without a tokenizer one piece with all of the text.
        own_left, read_left: how many tokens (or characters, see `Rollout.unit`) are left out.
    """

    action: str
    error: str
    own: list[Piece]
    read: list[Piece]
    own_left: int
    read_left: int


@dataclass(frozen=True, slots=True)
class Rollout:
    """A stored rollout, ready to be shown.

    Attributes:
        row: its line.
        turns: the first ones.
        turns_left: how many more it has.
        strip: (role, tokens) in a row.
        unit: what is counted where something is left out: "tokens" or "characters".
        change: its reward less its group's mean; None outside of a group.
    """

    row: Row
    turns: list[ShownTurn]
    turns_left: int
    strip: list[tuple[str, int]]
    unit: str
    change: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one question in one training step.

    Attributes:
        step: which.
        rollouts: lowest rewards first, MOST_COLUMNS at most.
        size: how many it has.
        rewards: of all, sorted.
        hinted: how many were sampled under a hint.
    """

    step: int
    rollouts: list[Rollout]
    size: int
    rewards: list[float]
    hinted: int

    @property
    def first(self) -> Row:
        return self.rollouts[0].row

    @property
    def mixed(self) -> bool:
        """Whether rewards differ: only then does the group have a gradient."""
        return self.rewards[0] < self.rewards[-1]

    @property
    def mean(self) -> float:
        return math.fsum(self.rewards) / self.size

    @property
    def instructions(self) -> list[str]:
        """The texts that its rollouts were sampled under, without hints."""
        return list(dict.fromkeys(r.row["sampled"]["instruction"] for r in self.rollouts))


def show_rollout(
    row: Row, tokenizer: "Tokenizer | None" = None, change: float | None = None
) -> Rollout:
    """A stored rollout, its tokens told apart where the tokenizer allows."""
    found = None if tokenizer is None else turns_in_tokens(tokenizer, row)
    shown: list[ShownTurn] = []
    room = _ROLLOUT_TOKENS if found else 10 * _CHARACTERS
    for number, turn in enumerate(row["turns"]):
        if room <= 0:
            break
        if found:
            own, own_left = shortened(found[number][:1], min(room, _OWN_TOKENS))
            read, read_left = shortened(found[number][1:], _READ_TOKENS)
            if not any(piece.role == OBSERVED for piece in read):
                own, read = [*own, *read], []  # what closes a turn needs no place of its own
        else:
            own, own_left = _plain(OWN, turn["text"])
            read, read_left = _plain(OBSERVED, turn["observation"])
        room -= sum(len(p.texts) if found else len(p.texts[0]) for p in (*own, *read))
        shown.append(ShownTurn(turn["action"], turn["error"], own, read, own_left, read_left))
    unit = "tokens" if found else "characters"
    left = len(row["turns"]) - len(shown)
    return Rollout(row, shown, left, role_runs(row, found), unit, change)


def _plain(role: str, text: str) -> tuple[list[Piece], int]:
    text = text.strip()
    kept = text[:_CHARACTERS]
    return ([Piece(role, (kept,))] if kept else []), len(text) - len(kept)


def some_groups(run: RunDir) -> list[Group]:
    """Groups of the last stored training step and of the first: mixed rewards first.

    Of a run with hints one group with some, from the newest of the files that has one.
    """
    steps = [step for step, purpose in run.trajectory_files() if purpose == "train"]
    if not steps:
        return []
    tokenizer = read_tokenizer(run.path)
    read: dict[int, list[list[Row]]] = {}

    def groups(step: int) -> list[list[Row]]:
        if step not in read:
            read[step] = _grouped(run.read_trajectories(step, "train"))
        return read[step]

    chosen: list[tuple[int, list[Row]]] = []
    taken: set[int] = set()

    def take(step: int, wanted: Callable[[list[Row]], bool], most: int) -> None:
        found = [g for g in groups(step) if wanted(g) and id(g) not in taken]
        for group in sorted(found, key=_unevenness)[:most]:
            taken.add(id(group))
            chosen.append((step, group))

    take(steps[-1], _is_mixed, 2)
    for step in reversed(steps[-_LOOKED_AT:]):
        if any(map(_is_hinted, groups(step))):
            take(step, lambda g: _is_hinted(g) and _is_mixed(g), 1)
            break
    take(steps[-1], _has_failed, 1)
    if len(steps) > 1:
        take(steps[0], _is_mixed, 1)
        take(steps[0], _has_failed, 1)
    if not chosen:
        take(steps[-1], lambda group: True, 2)
    return [_shown(step, group, tokenizer) for step, group in chosen[:MOST_GROUPS]]


def _grouped(rows: Iterable[Row]) -> list[list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["group"], []).append(row)
    return list(found.values())


def _reward(row: Row) -> float:
    return float(row["reward"] or 0.0)


def _is_mixed(group: Sequence[Row]) -> bool:
    return len({_reward(row) for row in group}) > 1


def _has_failed(group: Sequence[Row]) -> bool:
    """All rewards alike, and none above 0."""
    return not _is_mixed(group) and _reward(group[0]) <= 0


def _is_hinted(group: Sequence[Row]) -> bool:
    return any(row["sampled"]["hint"] for row in group)


def _unevenness(group: Sequence[Row]) -> float:
    """How far the mean is from the middle of the rewards: even groups tell most."""
    rewards = [_reward(row) for row in group]
    return abs(math.fsum(rewards) / len(rewards) - (min(rewards) + max(rewards)) / 2)


def _shown(step: int, group: Sequence[Row], tokenizer: "Tokenizer | None") -> Group:
    ordered = sorted(group, key=_reward)
    rewards = [_reward(row) for row in ordered]
    mean = math.fsum(rewards) / len(rewards)
    half = MOST_COLUMNS // 2
    kept = ordered if len(ordered) <= MOST_COLUMNS else [*ordered[:half], *ordered[-half:]]
    return Group(
        step,
        [show_rollout(row, tokenizer, _reward(row) - mean) for row in kept],
        len(group),
        rewards,
        sum(bool(row["sampled"]["hint"]) for row in group),
    )
