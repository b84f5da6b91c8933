"""Rollouts of a report: groups side by side from training, single ones of an evaluation, by token.

Tokens are shown by their role: written by the policy (mask 1), the text of an observation, and the
chat template around it. Run folders hold token ids; their texts come from the tokenizer in `best/`,
read with `tokenizers` only.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cotune.run.json_files import Row
from cotune.run.run_dir import RunDir

if TYPE_CHECKING:
    from tokenizers import Tokenizer

OWN, OBSERVED, TEMPLATE = "own", "obs", "tpl"
MOST_GROUPS, MOST_COLUMNS = 6, 8
_EVALUATED, _EVALUATED_BEST = 10, 3  # rollouts of an evaluation that are shown; best ones of them
_SEARCHED = 4  # files searched for a group with hints
# Limits of what a page shows of a turn and of a rollout: it stays small at any context length.
_OWN_TOKENS, _READ_TOKENS, _ROLLOUT_TOKENS, _CHARACTERS = 400, 160, 1200, 2000


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens in a row with one role; `texts` joined is their text."""

    role: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """One turn: what the policy wrote and what it read.

    Attributes:
        own, read: the tokens; without a tokenizer one piece with all of the text.
        own_left, read_left: how many tokens (or characters, see `Rollout.unit`) are omitted.
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
        turns, turns_left: the first turns, and how many more it has.
        strip: (role, tokens) in a row.
        unit: what is counted as omitted: "tokens" or "characters".
        change: its reward less its group's mean; None outside a group.
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
        rollouts: lowest rewards first, MOST_COLUMNS of them at most.
        rewards: all rewards, sorted.
        size, hinted: number of rollouts, and of those sampled under a hint.
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
        """Rewards differ: only then does the group have a gradient."""
        return self.rewards[0] < self.rewards[-1]

    @property
    def mean(self) -> float:
        return math.fsum(self.rewards) / self.size

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
    read: dict[int, list[list[Row]]] = {}

    def groups(step: int) -> list[list[Row]]:
        if step not in read:
            by_group: dict[int, list[Row]] = {}
            for row in run.read_trajectories(step, "train"):
                by_group.setdefault(row["group"], []).append(row)
            read[step] = list(by_group.values())
        return read[step]

    chosen: list[tuple[int, list[Row]]] = []

    def take(step: int, wanted: Callable[[list[Row]], bool], most: int) -> None:
        found = [g for g in groups(step) if wanted(g) and (step, g) not in chosen]
        chosen.extend((step, group) for group in sorted(found, key=_unevenness)[:most])

    take(steps[-1], _is_mixed, 2)
    for step in reversed(steps[-_SEARCHED:]):
        if any(map(_is_hinted, groups(step))):
            take(step, lambda group: _is_hinted(group) and _is_mixed(group), 1)
            break
    take(steps[-1], _has_failed, 1)
    if len(steps) > 1:
        take(steps[0], _is_mixed, 1)
        take(steps[0], _has_failed, 1)
    if not chosen:
        take(steps[-1], lambda group: True, 2)
    tokenizer = read_tokenizer(run.path)
    return [_shown_group(step, group, tokenizer) for step, group in chosen[:MOST_GROUPS]]


def _reward(row: Row) -> float:
    return float(row["reward"] or 0.0)


def _is_mixed(group: Sequence[Row]) -> bool:
    return len({_reward(row) for row in group}) > 1


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
    return Group(
        step,
        [show_rollout(row, tokenizer, _reward(row) - mean) for row in kept],
        len(group),
        rewards,
        sum(bool(row["sampled"]["hint"]) for row in group),
    )


def some_evaluated(run: RunDir) -> tuple[list[Rollout], tuple[str, int] | None]:
    """Choose rollouts of the evaluation after training, else of the newest one.

    Returns:
        The rollouts, and the file they are from with the number it holds; None if there is none.
    """
    files = [file for file in run.trajectory_files() if file[1].startswith("evaluate")]
    if not files:
        return [], None
    rank = {"evaluate_after": 2, "evaluate_during": 1}
    step, purpose = max(files, key=lambda file: (rank.get(file[1], 0), file))
    rows = run.read_trajectories(step, purpose)
    tokenizer = read_tokenizer(run.path)
    chosen = choose_trajectories(rows, _EVALUATED, _EVALUATED_BEST)
    # Recorded under the step that follows.
    when = {
        "evaluate_before": "the evaluation before training",
        "evaluate_after": "the last evaluation",
    }.get(purpose, f"the evaluation after step {step - 1}")
    return [show_rollout(row, tokenizer) for row in chosen], (when, len(rows))


def choose_trajectories(rows: Sequence[Row], shown: int, best: int) -> list[Row]:
    """Choose `shown` of the rows: the lowest rewards first, then `best` of the highest.

    Rows of equal reward alternate between stop reasons and strata.
    """

    def by_reward(rows: Sequence[Row], sign: float) -> list[Row]:
        seen: Counter[tuple[object, ...]] = Counter()
        keys: list[tuple[float, int]] = []
        for row in rows:
            bucket = (row["reward"], row["stop"], row["task"]["stratum"])
            keys.append((sign * _reward(row), seen[bucket]))
            seen[bucket] += 1
        return [rows[i] for i in sorted(range(len(rows)), key=keys.__getitem__)]

    lowest = by_reward(rows, 1.0)
    if len(rows) <= shown:
        return lowest
    return lowest[: shown - best] + by_reward(lowest[shown - best :], -1.0)[:best]


def show_rollout(
    row: Row, tokenizer: "Tokenizer | None" = None, change: float | None = None
) -> Rollout:
    """Prepare a stored rollout, its tokens by role if the tokenizer fits them."""
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
                own, read = [*own, *read], []  # the end of a turn needs no separate block
        else:
            own, own_left = _plain(OWN, turn["text"])
            read, read_left = _plain(OBSERVED, turn["observation"])
        room -= sum(len(p.texts) if found else len(p.texts[0]) for p in (*own, *read))
        shown.append(ShownTurn(turn["action"], turn["error"], own, read, own_left, read_left))
    left = len(row["turns"]) - len(shown)
    return Rollout(
        row, shown, left, role_runs(row, found), "tokens" if found else "characters", change
    )


def _plain(role: str, text: str) -> tuple[list[Piece], int]:
    text = text.strip()
    kept = text[:_CHARACTERS]
    return ([Piece(role, (kept,))] if kept else []), len(text) - len(kept)


def shortened(pieces: Sequence[Piece], most: int) -> tuple[list[Piece], int]:
    """Return the first `most` tokens of the pieces, and how many are left out."""
    kept: list[Piece] = []
    room = most
    for piece in pieces:
        if room > 0:
            kept.append(Piece(piece.role, piece.texts[:room]))
        room -= len(piece.texts)
    return kept, max(0, -room)


def role_runs(row: Row, turns: Sequence[Sequence[Piece]] | None) -> list[tuple[str, int]]:
    """Return a rollout as runs of tokens with one role: (role, length), for the strip above it."""
    if turns is not None:
        flat = [(piece.role, len(piece.texts)) for turn in turns for piece in turn]
    else:
        flat = [(OWN if value else OBSERVED, 1) for value in row.get("mask") or ()]
    runs = itertools.groupby(flat, key=lambda pair: pair[0])
    return [(role, sum(length for _, length in run)) for role, run in runs]


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


def turns_in_tokens(tokenizer: "Tokenizer", row: Row) -> list[list[Piece]] | None:
    """Return a stored rollout's tokens by turn, each turn's own first.

    None if they cannot be assigned: no mask, turns that the mask does not separate, or a tokenizer
    whose texts are not those of the turns.
    """
    ids, mask, turns = row.get("completion_ids"), row.get("mask"), row["turns"]
    if not ids or not mask or len(ids) != len(mask) or not mask[0]:
        return None
    texts = _texts(tokenizer, ids)
    runs = [
        (own, [i for i, _ in run])
        for own, run in itertools.groupby(enumerate(mask), key=lambda pair: bool(pair[1]))
    ]
    if texts is None or sum(own for own, _ in runs) != len(turns):
        return None
    control = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    found: list[list[Piece]] = []
    for own, places in runs:
        part = [texts[i] for i in places]
        if not own:
            found[-1] += _environment(part, turns[len(found) - 1]["observation"], control)
        elif turns[len(found)]["text"].strip() in "".join(part):
            found.append([Piece(OWN, tuple(part))])
        else:
            return None
    return found


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


def _environment(texts: Sequence[str], observation: str, control: set[str]) -> Iterable[Piece]:
    """Split tokens that the policy did not write: the observation, and the template around it."""
    wanted = observation.strip()
    start = "".join(texts).find(wanted) if wanted else -1
    roles: list[str] = []
    at = 0
    for text in texts:
        inside = at + len(text) > start and at < start + len(wanted)
        if start < 0:  # a chat template may write contents differently from the stored ones
            inside = wanted != "" and text not in control
        roles.append(OBSERVED if inside else TEMPLATE)
        at += len(text)
    for role, run in itertools.groupby(zip(roles, texts, strict=True), key=lambda pair: pair[0]):
        yield Piece(role, tuple(text for _, text in run))
