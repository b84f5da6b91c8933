"""Splits of questions: holding some out of the training data, and warnings of overlaps."""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from cotune.errors import ConfigError
from cotune.utils.processes import launched_rank

SPLITS = ("train", "validation", "test")
SHARES = {"test": 5, "validation": 10}
"""For each split, n: at most one in n questions is held out."""
_LEAST = 10  # different questions of which some can be held out

_log = logging.getLogger("cotune")


def hold_out(
    keys: Sequence[str], sizes: Mapping[str, int], source: str, field: str = "dataset"
) -> dict[str, list[int]]:
    """Split rows into training and held-out ones; return the positions of each split in order.

    Rows are ranked by the hash of their keys: the test split takes the first, validation the
    last, so that neither depends on the size of the other. Rows with equal keys stay together; if nearly
    all have the same, as in games, each counts by itself.

    Args:
        keys: the question of each row.
        sizes: number of questions of each split; cut to the share that may be held out (`SHARES`).
        source, field: the start of error messages, and the run file's section that holds the numbers.
    """
    if len(set(keys)) < _LEAST <= len(keys):
        keys = number_repeats(keys, "\n")
    ranked = sorted(set(keys), key=sha)
    chosen: dict[str, str] = {}
    for split, count in sizes.items():
        if count < 0:
            raise ConfigError(f"{field}.{split} is {count}; expected 0 or more, or data")
        limit = len(ranked) // SHARES[split]
        if count and not limit:
            none = ", or set it to 0" if (field, split) == ("dataset", "validation") else ""
            raise ConfigError(
                f"{source} has {len(ranked)} different questions; expected at least {SHARES[split]} "
                f"to hold one out for {field}.{split}: add some, or name another file or split there{none}"
            )
        count = min(count, limit)
        held = ranked[:count] if split == "test" else ranked[len(ranked) - count :]
        chosen |= dict.fromkeys(held, split)
    places: dict[str, list[int]] = {split: [] for split in ("train", *sizes)}
    for place, key in enumerate(keys):
        places[chosen.get(key, "train")].append(place)
    return places


def number_repeats(texts: Iterable[str], mark: str) -> list[str]:
    """Return texts with `mark` and a number after each that came before."""
    times: Counter[str] = Counter()
    distinct: list[str] = []
    for text in texts:
        distinct.append(f"{text}{mark}{times[text]}" if times[text] else text)
        times[text] += 1
    return distinct


def warn_of_overlaps(keys: Mapping[str, Sequence[str]]) -> None:
    """Warn of validation and test questions that are also trained on, by the keys of each split."""
    trained = set(keys["train"])
    for split in ("validation", "test"):
        both = sum(key in trained for key in keys.get(split, ()))
        if both:
            warn(
                f"dataset.{split}: {both} of {len(keys[split])} questions are also training "
                "questions; its scores will be too high"
            )


def sha(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def digest(question: str) -> str:
    """Return a short hash of a question, for an id."""
    return hashlib.sha1(question.encode()).hexdigest()[:12]


@cache
def warn(text: str) -> None:
    """Log a warning once, in the first process only: a run reads its data several times."""
    if launched_rank() == 0:
        _log.warning("%s", text)
