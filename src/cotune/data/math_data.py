"""Where mathematics problems are read from, and which of them are trained on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cotune.data.dataset_splits import Question, hold_out, sha, without_held
from cotune.data.jsonl import json_rows, shortened
from cotune.errors import ConfigError
from cotune.types import Task

if TYPE_CHECKING:
    from cotune.data.dataset_files import Row

OF_TRAIN = "train"
HUB = "hub:"
"""Begins the name of a data set of the hub: hub:owner/name or hub:owner/name:split."""
# DeepMath's reasoning traces: 4.9 of its 5 GB, read only where one is named as the solution.
_TRACES = frozenset(("r1_solution_1", "r1_solution_2", "r1_solution_3"))


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which problems are trained on; the fields of `MathOptions`.

    Attributes:
        hold_out: by split, how many problems are taken out of the training data.
        source: the field and the file, to start a message with.
    """

    at_least: float | None
    column: str
    hold_out: Mapping[str, int]
    limit: int | None
    seed: int
    source: str


def hub_name(path: Path) -> str | None:
    """`owner/name`, with `:split` or without, where a path names a data set of the hub."""
    text = path.as_posix()
    return text.removeprefix(HUB) if text.startswith(HUB) else None


def read_rows(path: Path, field: str, kept: str) -> "Sequence[Row]":
    """The rows of a file, a folder of Parquet files or a data set of the hub.

    Args:
        path: of these; see `HUB`.
        field: of the run file, named in errors.
        kept: the one column of reasoning traces that is read.
    """
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        return list(json_rows(path, field))
    # Imported here so that reading a run file loads no reader of tables.
    from cotune.data.dataset_files import file_rows, hub_rows

    without = _TRACES - {kept}
    name = hub_name(path)
    if name is None:
        return file_rows(path, field, without)
    repository, _, split = name.partition(":")
    mend = f"correct {field}, or download its files where there is a network and name them there"
    return hub_rows(repository, None, split or OF_TRAIN, field, mend, without)


def select(
    problems: Mapping[str, Sequence[tuple[Task, str]]], selection: Selection
) -> dict[str, list[Task]]:
    """The tasks of each split from what was read, with where each stands.

    Raises:
        ConfigError: no problem that is hard enough, a difficulty that is none, too few problems to
            hold some out, none that is not in a held-out file.
    """
    trained = [
        Question(task, sha(task.question)[:12], task.question, where)
        for task, where in problems[OF_TRAIN]
        if _hard_enough(task, where, selection)
    ]
    if not trained:
        raise ConfigError(
            f"{selection.source} has no problem of {selection.column} {selection.at_least:g} or more; "
            "lower environment.difficulty_at_least"
        )
    held = {s: [t for t, _ in rows] for s, rows in problems.items() if s != OF_TRAIN}
    trained = without_held(
        trained, {task.question for tasks in held.values() for task in tasks}, selection.source
    )
    parts = hold_out(trained, selection.hold_out, selection.source, "environment")
    held |= {s: [_renamed(q.task, s) for q in parts[s]] for s in selection.hold_out}
    kept = [question.task for question in parts[OF_TRAIN]]
    return {OF_TRAIN: _drawn(kept, selection), **held}


def _renamed(task: Task, split: str) -> Task:
    """Under the split's name, unless the data gave the id."""
    made = f"{OF_TRAIN}-"
    return (
        replace(task, id=f"{split}-{task.id.removeprefix(made)}")
        if task.id.startswith(made)
        else task
    )


def _hard_enough(task: Task, where: str, selection: Selection) -> bool:
    if selection.at_least is None:
        return True
    value = task.columns[selection.column]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(
            f'{where}: "{selection.column}" is {shortened(value)}; expected a number, as '
            "environment.difficulty_at_least asks, or name another by environment.difficulty_column"
        )
    return value >= selection.at_least


def _drawn(tasks: Sequence[Task], selection: Selection) -> list[Task]:
    """`limit` of the tasks, in their order, whatever that was."""
    limit = selection.limit
    if limit is None or limit >= len(tasks):
        return list(tasks)
    ranked = sorted(tasks, key=lambda task: (sha(f"{selection.seed}/{task.question}"), task.id))
    chosen = {task.id for task in ranked[:limit]}
    return [task for task in tasks if task.id in chosen]
