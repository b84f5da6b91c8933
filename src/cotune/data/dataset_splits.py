"""Which questions of a user's data are held out, and the ids that tasks get."""

import hashlib
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from cotune.errors import ConfigError
from cotune.types import Task
from cotune.utils.processes import launched_rank

SPLITS = ("train", "validation", "test")
SHARES = {"test": 5, "validation": 10}
"""At most one in so many questions is held out."""

_log = logging.getLogger("cotune")


@dataclass(frozen=True)
class Question:
    """A task before its split is known.

    Attributes:
        task: its `id` is "" where the data gives none.
        digest: of the question and what stands before it; makes the id then.
        key: what decides whether it is held out: the same for equal questions.
        where: the row, for messages.
    """

    task: Task
    digest: str
    key: str
    where: str


def hold_out(
    questions: Sequence[Question], wanted: Mapping[str, int], source: str, field: str = "dataset"
) -> dict[str, list[Question]]:
    """Training data without what is held out, and that.

    Questions are ranked by the hash of their text: the test split takes the first, validation the
    last, so that neither depends on how many the other has.

    Args:
        questions: all there are.
        wanted: how many of each split; of fewer questions, the share that may be held out.
        source: where they come from, to start a message with.
        field: the run file's section that says how many.
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


def without_held(
    questions: Sequence[Question], held: Collection[str], source: str
) -> list[Question]:
    """Training data without the questions of held-out files; a warning says how many there were.

    Args:
        questions: all there are.
        held: the keys of what stands in files of their own.
        source: where the questions come from, to start a message with.

    Raises:
        ConfigError: nothing is left.
    """
    kept = [question for question in questions if question.key not in held]
    if not kept:
        raise ConfigError(f"{source} has no question that is not held out; add some")
    if dropped := len(questions) - len(kept):
        warn(f"{source}: {dropped} questions of held-out files are not trained on")
    return kept


def warn_of_overlaps(questions: Mapping[str, Sequence[Question]]) -> None:
    trained = {q.key for q in questions["train"]}
    for split in ("validation", "test"):
        both = sum(q.key in trained for q in questions[split])
        if both:
            warn(
                f"dataset.{split}: {both} of {len(questions[split])} questions are training questions, "
                "too; its scores will flatter"
            )


def with_ids(questions: Sequence[Question], split: str, own: bool) -> list[Task]:
    """Tasks under their final ids; `own` if the split is not held out of the training data."""
    prefix = f"{split}-" if own and split != "train" else ""
    return [
        replace(q.task, id=f"{prefix}{q.task.id}" if q.task.id else f"{split}-{q.digest}")
        for q in questions
    ]


def sha(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def warn(text: str) -> None:
    # Every process of a run reads the data; one says what it thinks of it.
    if launched_rank() == 0:
        _log.warning("%s", text)
