"""Splits of questions: holding some out of the training data, overlaps, and the ids of tasks."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from cotune.errors import ConfigError
from cotune.types import Task
from cotune.utils.processes import launched_rank

SPLITS = ("train", "validation", "test")
SHARES = {"test": 5, "validation": 10}
"""For each split, n: at most one in n questions is held out."""

_log = logging.getLogger("cotune")


@dataclass(frozen=True)
class Question:
    """A task before its split is known.

    Attributes:
        task: its `id` is "" if the data gives none.
        digest: a hash of the question and the messages before it, for the id.
        key: decides whether it is held out; the same for equal questions.
        where: the row, for messages.
    """

    task: Task
    digest: str
    key: str
    where: str


def hold_out(
    questions: Sequence[Question], wanted: Mapping[str, int], source: str, field: str = "dataset"
) -> dict[str, list[Question]]:
    """Split questions into training and held-out ones.

    Questions are ranked by the hash of their text: the test split takes the first, validation the
    last, so that neither depends on the size of the other.

    Args:
        wanted: number of questions of each split; cut to the share that may be held out (`SHARES`).
        source: the start of error messages.
        field: the run file's section that holds the numbers.
    """
    ranked = sorted({q.key for q in questions}, key=sha)
    chosen: dict[str, str] = {}
    for split, count in wanted.items():
        most = len(ranked) // SHARES[split]
        if count and not most:
            raise ConfigError(
                f"{source} has {len(ranked)} different questions; expected at least {SHARES[split]} "
                f"to hold one out for {field}.{split}: add some, or name another file or split there"
            )
        count = min(count, most)
        keys = ranked[:count] if split == "test" else ranked[len(ranked) - count :]
        chosen |= dict.fromkeys(keys, split)
    parts = {"train": [q for q in questions if q.key not in chosen]}
    for split in wanted:
        parts[split] = [q for q in questions if chosen.get(q.key) == split]
    return parts


def warn_of_overlaps(questions: Mapping[str, Sequence[Question]]) -> None:
    """Warn of validation and test questions that are also trained on."""
    trained = {q.key for q in questions["train"]}
    for split in ("validation", "test"):
        both = sum(q.key in trained for q in questions[split])
        if both:
            warn(
                f"dataset.{split}: {both} of {len(questions[split])} questions are also training "
                "questions; its scores will be too high"
            )


def warn_if_fewer(parts: Mapping[str, Sequence[Question]], asked: Mapping[str, int]) -> None:
    """Warn of splits that hold fewer questions than were asked for, with the size of each."""
    if all(len(parts[split]) >= count for split, count in asked.items()):
        return
    told = [
        f"{len(part)} {split}"
        + (f" ({asked[split]} asked)" if len(part) < asked.get(split, 0) else "")
        for split, part in parts.items()
    ]
    total = sum(map(len, parts.values()))
    warn(f"dataset: {total} questions: {', '.join(told)}")


def with_ids(questions: Sequence[Question], split: str, own: bool) -> list[Task]:
    """Return tasks with their final ids; `own` if the split has its own data."""
    prefix = f"{split}-" if own and split != "train" else ""
    return [
        replace(q.task, id=f"{prefix}{q.task.id}" if q.task.id else f"{split}-{q.digest}")
        for q in questions
    ]


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
