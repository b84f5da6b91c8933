"""A rollout's tokens as text, each with its role: what the policy wrote, read, and what is template.

Run folders hold token ids; their texts come from the tokenizer in `best/`, by `tokenizers` alone.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cotune.run.json_files import Row

if TYPE_CHECKING:
    from tokenizers import Tokenizer

OWN, OBSERVED, TEMPLATE = "own", "obs", "tpl"
"""Roles: mask 1; an environment's text; what stands around it, control tokens among it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens in a row with one role; `texts` joined is their text."""

    role: str
    texts: tuple[str, ...]


def read_tokenizer(run: Path) -> "Tokenizer | None":
    """The tokenizer of a run's `best/`; None where there is none that can be read."""
    path = run / "best" / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    try:
        return Tokenizer.from_file(str(path))
    except Exception:  # noqa: BLE001 - tokenizers raises nothing more special; colours are optional
        return None


def turns_in_tokens(tokenizer: "Tokenizer", row: Row) -> list[list[Piece]] | None:
    """A stored rollout's tokens by turn, each turn's own first.

    None where they do not tell: no mask, turns that the mask does not set apart, or a tokenizer
    by which the texts are not those of the turns.
    """
    ids, mask, turns = row.get("completion_ids"), row.get("mask"), row["turns"]
    if not ids or not mask or len(ids) != len(mask) or not mask[0]:
        return None
    texts = _texts(tokenizer, ids)
    runs = [
        (value, [i for i, _ in run])
        for value, run in itertools.groupby(enumerate(mask), key=lambda pair: pair[1])
    ]
    if texts is None or sum(bool(value) for value, _ in runs) != len(turns):
        return None
    control = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    found: list[list[Piece]] = []
    for value, places in runs:
        part = [texts[i] for i in places]
        if value:
            if turns[len(found)]["text"].strip() not in "".join(part):
                return None
            found.append([Piece(OWN, tuple(part))])
        else:
            found[-1] += _environment(part, turns[len(found) - 1]["observation"], control)
    return found


def _texts(tokenizer: "Tokenizer", ids: Sequence[int]) -> list[str] | None:
    """The text of each token; "" where a character's bytes go on in the next."""
    from tokenizers.decoders import DecodeStream

    if min(ids) < 0 or any(tokenizer.id_to_token(i) is None for i in set(ids)):
        return None
    stream = DecodeStream(skip_special_tokens=False)
    try:
        return [stream.step(tokenizer, i) or "" for i in ids]
    except Exception:  # noqa: BLE001 - nothing more special; ids that do not make a text
        return None


def _environment(texts: Sequence[str], observation: str, control: set[str]) -> list[Piece]:
    """Tokens that the policy did not write: the observation, and the template around it."""
    whole, wanted = "".join(texts), observation.strip()
    start = whole.find(wanted) if wanted else -1
    end = start + len(wanted)
    roles: list[str] = []
    at = 0
    for text in texts:
        after = at + len(text)
        inside = after > start and at < end
        if start < 0:  # of chat messages a template may write the contents otherwise than stored
            inside = wanted != "" and text not in control
        roles.append(OBSERVED if inside else TEMPLATE)
        at = after
    return [
        Piece(role, tuple(text for _, text in run))
        for role, run in itertools.groupby(zip(roles, texts, strict=True), key=lambda p: p[0])
    ]


def shortened(pieces: Sequence[Piece], most: int) -> tuple[list[Piece], int]:
    """The first `most` tokens of the pieces, and how many are left out."""
    kept: list[Piece] = []
    room = most
    for piece in pieces:
        if room > 0:
            kept.append(Piece(piece.role, piece.texts[:room]))
        room -= len(piece.texts)
    return kept, max(0, -room)


def role_runs(row: Row, turns: Sequence[Sequence[Piece]] | None) -> list[tuple[str, int]]:
    """A rollout as runs of tokens with one role: (role, length), for the strip above it."""
    if turns is not None:
        flat = [(piece.role, len(piece.texts)) for turn in turns for piece in turn]
    else:
        mask = row.get("mask") or ()
        flat = [(OWN if v else OBSERVED, len(list(run))) for v, run in itertools.groupby(mask)]
    return [
        (role, sum(length for _, length in run))
        for role, run in itertools.groupby(flat, key=lambda pair: pair[0])
    ]
