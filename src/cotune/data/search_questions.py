"""The questions of a search environment: from files, held out of the training data, or sampled."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from cotune.data.dataset_splits import SPLITS, Question, hold_out, sha, without_held
from cotune.data.jsonl import read_tasks
from cotune.data.search_r1_parquet import read_parquet_tasks
from cotune.errors import ConfigError
from cotune.types import Task

Split = Literal["train", "validation", "test"]
Sample = Mapping[Split, int]
"""How many questions of a split are kept."""


def check_questions(validation: int | Path, test: int | Path, sample: Sample) -> None:
    """Raises ValueError for numbers of questions that make no split."""
    held_out = {"validation": validation, "test": test}
    counts = {name: n for name, n in held_out.items() if isinstance(n, int)}
    counts |= {f"sample.{name}": n for name, n in sample.items()}
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"environment.{name} is {count}; expected 1 or more")
    if unknown := sorted(set(sample) - set(SPLITS)):
        raise ValueError(
            f"environment.sample names {', '.join(unknown)}; expected {', '.join(SPLITS)}"
        )


def as_it_is(task: Task) -> Task:
    return task


def read_questions(
    train: Path,
    validation: int | Path,
    test: int | Path,
    sample: Sample,
    asked: Callable[[Task], Task] = as_it_is,
) -> dict[str, list[Task]]:
    """The tasks of each split, in the files' order.

    Questions of a validation or test file are dropped from `train` first, with a warning that counts
    them, so that the splits share none. Which questions are held out or sampled is decided by a hash of their text: another order of the
    rows changes nothing, added rows change little, and equal questions stay on one side.

    Args:
        train: a file of questions, or a folder of Parquet files.
        validation, test: likewise, or how many of `train` to hold out.
        sample: how many of a split to keep.
        asked: a task as its environment asks it; questions that are asked alike are equal.

    Raises:
        ConfigError: a file that cannot be read, too few questions to hold some out, or none
            that is not in a held-out file.
    """
    tasks = {"train": read_split(train, "train")}
    wanted: dict[str, int] = {}
    for split, given in (("validation", validation), ("test", test)):
        if isinstance(given, int):
            wanted[split] = given
        else:
            tasks[split] = read_split(given, split)
    source = f"environment.train: {train}"
    questions = [Question(task, "", asked(task).question, "") for task in tasks["train"]]
    files = [split for split in tasks if split != "train"]
    held = {asked(task).question for split in files for task in tasks[split]}
    parts = hold_out(without_held(questions, held, source), wanted, source, "environment")
    tasks |= {split: [question.task for question in part] for split, part in parts.items()}
    return {split: _sampled(tasks[split], sample.get(split)) for split in SPLITS}


def read_split(path: Path, split: str) -> list[Task]:
    """The tasks of a JSONL or Parquet file, or of a folder of Parquet files.

    Raises:
        ConfigError: no such file, or one that cannot be read.
    """
    if path.is_dir() or path.suffix.lower() == ".parquet":
        if not path.exists():
            raise ConfigError(f"environment.{split}: no file {path}; name a Parquet or JSONL file")
        return read_parquet_tasks(path, split)
    return read_tasks(path, split)


def _sampled(tasks: Sequence[Task], count: int | None) -> list[Task]:
    if count is None or count >= len(tasks):
        return list(tasks)
    # Held-out questions are the first and the last by this hash; a sample is by another one.
    kept = sorted(tasks, key=lambda task: sha(f"sample {task.question} {task.id}"))[:count]
    ids = {task.id for task in kept}
    return [task for task in tasks if task.id in ids]
