"""Splits by what a question is about: a hash of a name or of a pair of numbers."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from cotune import Task
from cotune.data.splits import digest
from cotune.worlds.ladder import different, split_by_hash

SHARES = {"train": 0.6, "validation": 0.2, "test": 0.2}
_TRIES = 2000  # draws of one question before there are no more


def check_counts(options: object, *names: str) -> None:
    """Raise ValueError unless each of the named options is 1 or more."""
    for name in names:
        if getattr(options, name) < 1:
            raise ValueError(f"environment.{name} is {getattr(options, name)}; expected 1 or more")


Drawn = tuple[str, str]
"""A question and its answer."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The numbers of questions that a run uses.

    Attributes:
        train, validation, test: numbers of questions, in equal shares of each stratum.
        seed: other questions for another seed; what a split's questions are about stays the same.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    train: int = 2000
    validation: int = 300
    test: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(self, *SHARES)


def split_of(content: str) -> str:
    """Return the split of a content, by a hash of its text."""
    return split_by_hash(content, SHARES)


def drawn_tasks(
    world: str,
    sizes: Sizes,
    strata: Sequence[str],
    draw: Callable[[random.Random, str, str], Drawn],
) -> dict[str, list[Task]]:
    """Return tasks by split, each question once and the strata in turn.

    Args:
        world: the kind of environment, part of ids.
        draw: (generator, stratum, split) to a question on that split's content.

    Raises:
        ConfigError: a split asks for more questions of a stratum than were found.
    """
    tasks: dict[str, list[Task]] = {}
    for split in SHARES:
        streams = [_endless(world, sizes.seed, split, stratum, draw) for stratum in strata]
        count = int(getattr(sizes, split))
        tasks[split] = [next(streams[i % len(streams)]) for i in range(count)]
    return tasks


def _endless(
    world: str,
    seed: int,
    split: str,
    stratum: str,
    draw: Callable[[random.Random, str, str], Drawn],
) -> Iterator[Task]:
    rng = random.Random(f"{world}/{seed}/{split}/{stratum}")

    def task() -> Task:
        question, answer = draw(rng, stratum, split)
        return Task(f"{world}-{split}-{digest(question)}", question, (answer,), stratum)

    return different(task, _TRIES, split, f"questions on {stratum}")
