"""Rollouts of a report: groups side by side from training, single ones of an evaluation.

Text is shown by its author: the policy, or the environment with the chat template around it. Run folders
hold token ids, whose texts come from the tokenizer in `best/`; without it the texts of the turns are shown.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotune.run.json_files import Row
from cotune.run.run_dir import RunDir

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_GROUPS, MOST_COLUMNS = 6, 8
_EVALUATED, _EVALUATED_BEST = 10, 3  # rollouts of an evaluation that are shown; best ones of them
_SEARCHED = 4  # files searched for a group with hints
# Limits of what a page shows of a turn and of a rollout: it stays small at any context length.
_WRITTEN, _READ, _ROLLOUT, _CHARACTERS = 400, 160, 1200, 2000
TokenTurn = tuple[Sequence[str], Sequence[str]]
"""The tokens that the policy wrote, and those that it then read."""


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """One turn.

    Attributes:
        written, read: what the policy wrote and what it read: tokens, or one text.
        written_left, read_left: how many tokens (or characters, see `Rollout.unit`) are omitted.
    """

    action: str
    error: str
    written: Sequence[str]
    read: Sequence[str]
    written_left: int
    read_left: int


@dataclass(frozen=True, slots=True)
class Rollout:
    """A stored rollout, ready to be shown.

    Attributes:
        turns, turns_left: the first turns, and how many more it has.
        unit: what is counted as omitted: "tokens" or "characters".
        change: its reward less its group's mean; None outside a group.
    """

    row: Row
    turns: list[ShownTurn]
    turns_left: int
    unit: str
    change: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one question in one training step.

    Attributes:
        rollouts: lowest rewards first, MOST_COLUMNS of them at most.
        rewards: all rewards, sorted.
        hinted: number of rollouts that were sampled under a hint.
    """

    step: int
    rollouts: list[Rollout]
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
        return list(dict.fromkeys(r.row["sampled"]["instruction"] for r in self.rollouts))


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
    tokenizer = read_tokenizer(run.path)
    return [_shown_group(step, group, tokenizer) for step, group in chosen[:MOST_GROUPS]]


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


def _shown_group(step: int, group: Sequence[Row], tokenizer: "Tokenizer | None") -> Group:
    ordered = sorted(group, key=_reward)
    rewards = [_reward(row) for row in ordered]
    mean = math.fsum(rewards) / len(rewards)
    half = MOST_COLUMNS // 2
    kept = ordered if len(ordered) <= MOST_COLUMNS else [*ordered[:half], *ordered[-half:]]
    shown = [show_rollout(row, tokenizer, _reward(row) - mean) for row in kept]
    return Group(step, shown, rewards, sum(bool(row["sampled"]["hint"]) for row in group))


def some_evaluated(run: RunDir) -> tuple[list[Rollout], str]:
    """Choose rollouts of the evaluation after training, else of the newest one; say which they are."""
    files = [file for file in run.trajectory_files() if file[1].startswith("evaluate")]
    if not files:
        return [], ""
    rank = {"evaluate_after": 2, "evaluate_during": 1}
    step, purpose = max(files, key=lambda file: (rank.get(file[1], 0), file))
    rows = run.read_trajectories(step, purpose)
    tokenizer = read_tokenizer(run.path)
    by_reward = sorted(rows, key=_reward)
    chosen = by_reward
    if len(rows) > _EVALUATED:
        chosen = by_reward[: _EVALUATED - _EVALUATED_BEST] + by_reward[-_EVALUATED_BEST:]
    # Recorded under the step that follows.
    when = {
        "evaluate_before": "the evaluation before training",
        "evaluate_after": "the last evaluation",
    }.get(purpose, f"the evaluation after step {step - 1}")
    told = f"{len(chosen)} of the {len(rows)} rollouts of {when}, lowest rewards first."
    return [show_rollout(row, tokenizer) for row in chosen], told


def show_rollout(
    row: Row, tokenizer: "Tokenizer | None" = None, change: float | None = None
) -> Rollout:
    """Prepare a stored rollout, token by token if the tokenizer fits it."""
    tokens = None if tokenizer is None else turns_in_tokens(tokenizer, row)
    shown: list[ShownTurn] = []
    room = _ROLLOUT if tokens else 10 * _CHARACTERS
    for number, turn in enumerate(row["turns"]):
        if room <= 0:
            break
        written, read = (
            tokens[number] if tokens else (turn["text"].strip(), turn["observation"].strip())
        )
        most_written, most_read = (
            (min(room, _WRITTEN), _READ) if tokens else (_CHARACTERS, _CHARACTERS)
        )
        kept = written[:most_written], read[:most_read]
        room -= sum(map(len, kept))
        left = len(written) - len(kept[0]), len(read) - len(kept[1])
        texts: list[Any] = [text if tokens else [text] if text else [] for text in kept]
        shown.append(ShownTurn(turn["action"], turn["error"], texts[0], texts[1], left[0], left[1]))
    unit = "tokens" if tokens else "characters"
    return Rollout(row, shown, len(row["turns"]) - len(shown), unit, change)


def read_tokenizer(run: Path) -> "Tokenizer | None":
    """Read the tokenizer of a run's `best/`; None if there is none that can be read."""
    path = run / "best" / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(path))
    except Exception:  # noqa: BLE001 - tokenizers raises nothing more special; colours are optional
        return None


def turns_in_tokens(tokenizer: "Tokenizer", row: Row) -> list[TokenTurn] | None:
    """Return the text of each token of a stored rollout, by turn and author.

    None if they cannot be assigned: no mask, turns that the mask does not separate, or a tokenizer
    whose texts are not those of the turns.
    """
    ids, mask, turns = row.get("completion_ids"), row.get("mask"), row["turns"]
    if not ids or not mask or len(ids) != len(mask) or not mask[0]:
        return None
    texts = _texts(tokenizer, ids)
    if texts is None:
        return None
    by_author = itertools.groupby(zip(mask, texts, strict=True), key=lambda pair: bool(pair[0]))
    runs = [[text for _, text in run] for _, run in by_author]
    written, read = runs[::2], runs[1::2]
    if len(written) != len(turns):
        return None
    if any(t["text"].strip() not in "".join(w) for t, w in zip(turns, written, strict=True)):
        return None
    return list(itertools.zip_longest(written, read, fillvalue=()))


def _texts(tokenizer: "Tokenizer", ids: Sequence[int]) -> list[str] | None:
    """Return the text of each token; "" if a character's bytes continue in the next."""
    from tokenizers.decoders import DecodeStream

    if min(ids) < 0 or any(tokenizer.id_to_token(i) is None for i in set(ids)):
        return None
    stream = DecodeStream(skip_special_tokens=False)
    try:
        return [stream.step(tokenizer, i) or "" for i in ids]
    except Exception:  # noqa: BLE001 - nothing more special; the ids form no text
        return None
