"""A user's data as tasks: the `dataset` section, its files or hub data set, columns and splits."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from pydantic import Field, model_validator

from cotune.data.cells import (
    ANSWER_COLUMNS,
    get_nested,
    list_names,
    plain_text,
    read_messages,
    reference_answers,
)
from cotune.data.rows import Row, Rows, check_rows, file_rows, hub_rows
from cotune.data.splits import SPLITS, hold_out, number_repeats, sha, warn_of_overlaps
from cotune.errors import ConfigError
from cotune.types import Task
from cotune.utils.validation import Model

Column = Literal["question", "context", "answers", "solution", "stratum", "id"]
Columns = Mapping[Column, str | None]
"""The column of each role; None if it is not to be read."""

DEFAULT_COLUMNS: Mapping[Column, tuple[str, ...]] = {
    "question": ("question", "prompt", "problem"),
    "context": (),
    "answers": ANSWER_COLUMNS,
    "solution": ("solution",),
    "stratum": ("stratum",),
    "id": ("id",),
}
"""Columns that are tried, in this order, if `dataset.columns` names none."""

_MISSING = object()
_TEXTS: tuple[Column, ...] = ("context", "solution", "stratum", "id")


class DatasetConfig(Model):
    """Questions of your own, from a file or from the Hugging Face hub."""

    path: Path | None = None
    """A JSONL, JSON, CSV or Parquet file."""
    name: str | None = None
    """A data set of the Hugging Face hub, or a folder of data files."""
    subset: str | None = None
    """The hub data set's configuration."""
    split: str = "train"
    """The hub data set's split that is trained on; a file is one split."""
    validation: int | Path = 100
    """Number of questions held out of the training data for choosing the best policy (by a hash of their text, at most
    a tenth of all; 0 with `evaluation.every: 0`); or another file; or another split of a hub data set."""
    test: int | Path = 200
    """Number of questions held out for the final evaluation, at most a fifth; or a file or split."""
    columns: dict[Column, str | None] = Field(default_factory=dict[Column, str | None])
    """The column of each role, where it is not one of the usual (docs/how-to/data.md); null reads none. A dot
    leads to a field below a column. Only the question is required: a text, or chat messages that end with
    the user's. `context`, which has no default, is put before the question."""
    limit: int | None = Field(default=None, ge=1)
    """Train on only the first questions that are not held out; null: on all."""
    drop_too_long: bool = False
    """Leave out questions whose prompts need more than `limits.prompt_tokens`, in every split, with a
    count. Otherwise such a question is an error."""

    @model_validator(mode="after")
    def _one_source(self) -> "DatasetConfig":
        if (self.path is None) == (self.name is None):
            fields = "both path and name" if self.path else "neither path nor name"
            raise ValueError(f"dataset: has {fields}; expected one of them")
        if self.path is not None and (self.subset is not None or self.split != "train"):
            raise ValueError(
                f"dataset.{'split' if self.subset is None else 'subset'} is for a data set of the hub (name), "
                "but path is set; remove one"
            )
        for split, least in (("validation", 0), ("test", 1)):
            count = getattr(self, split)
            if isinstance(count, int) and count < least:
                raise ValueError(
                    f"dataset.{split} is {count}; expected {least} questions or more, a file, or a split of the hub"
                )
        return self


def read_dataset(config: DatasetConfig) -> dict[str, list[Task]]:
    """Read the tasks of each split, in the data's order.

    Every row is one task; its `columns` are the whole row. Questions are held out of the training data by a hash of
    their text (`hold_out`): shuffling changes nothing, added rows change little, and equal questions stay together. A
    row without an id gets one made of its split and question; of equal questions the later ones are numbered. Ids of
    held-out rows from a separate file or split are prefixed with the split's name.

    Raises:
        ConfigError: no such file or data set, a column missing or of the wrong type, or too few questions to hold some
            out; names the file and row.
    """

    def read(split: str, value: Any) -> tuple[list[Row], str]:
        field = f"dataset.{split}"
        if split == "train":
            field = "dataset.path" if config.name is None else "dataset.name"
        if config.name is None:
            return file_rows(value, field), f"{field}: {value}"
        rows = hub_rows(config.name, config.subset, str(value), field)
        return rows, f"{field}: {config.name}, split {value}"

    train = config.path or config.split
    sources = {"train": train, "validation": config.validation, "test": config.test}
    tasks = _by_split(sources, read, config.columns)
    return {**tasks, "train": tasks["train"][: config.limit]}


def tasks_from(
    dataset: Rows,
    *,
    columns: Mapping[str, str | None] | None = None,
    validation: "int | Rows" = 0,
    test: "int | Rows" = 0,
) -> dict[str, list[Task]]:
    """Turn rows into the tasks of each split, for an environment made in Python.

    Rows become tasks, and some are held out, as in `read_dataset`. A split without rows is empty.

    Args:
        dataset: training rows: a `datasets.Dataset`, or mappings of a column to its value.
        columns: the column of each role, as in a run file's `dataset.columns`; None reads none.
        validation: number of questions held out of `dataset`, at most a tenth; or rows.
        test: the same, at most a fifth.

    Raises:
        ConfigError: as `read_dataset`; names the row, from 1.
    """
    roles = get_args(Column)
    if unknown := [role for role in columns or {} if role not in roles]:
        raise ConfigError(
            f"dataset.columns: {unknown[0]!r} is not the role of a column; expected one of {', '.join(roles)}"
        )

    def read(split: str, value: Any) -> tuple[list[Row], str]:
        source = "dataset" if split == "train" else f"dataset.{split}"
        return check_rows(value, source), source

    sources = {"train": dataset, "validation": validation, "test": test}
    return _by_split(sources, read, cast("Columns", columns or {}))


def tasks_of_rows(rows: Sequence[Row], columns: Columns, source: str, split: str) -> list[Task]:
    """Turn rows into the tasks of one split, with its name before their ids; `source` starts messages."""
    return _add_ids(_make_tasks(rows, columns, source), split, True)


def _by_split(
    sources: Mapping[str, Any], read: Callable[[str, Any], tuple[list[Row], str]], columns: Columns
) -> dict[str, list[Task]]:
    """Read the tasks of each split, and hold questions out for the splits without data.

    Args:
        sources: the data of each split, or the number of questions to hold out.
        read: returns the rows of a split's data, and the start of messages about them.
    """
    sizes = {split: n for split, n in sources.items() if split != "train" and isinstance(n, int)}
    data = {split: read(split, value) for split, value in sources.items() if split not in sizes}
    tasks = {split: _make_tasks(rows, columns, source) for split, (rows, source) in data.items()}
    places = hold_out([_split_key(task) for task in tasks["train"]], sizes, data["train"][1])
    parts = tasks | {split: [tasks["train"][i] for i in rows] for split, rows in places.items()}
    warn_of_overlaps({split: [_split_key(task) for task in parts[split]] for split in data})
    return {split: _add_ids(parts[split], split, split not in sizes) for split in SPLITS}


def _split_key(task: Task) -> str:
    """Return what the user asks in a task, which decides whether it is held out."""
    return "\n".join([text for role, text in task.context if role != "system"] + [task.question])


def _add_ids(tasks: Sequence[Task], split: str, has_own_data: bool) -> list[Task]:
    """Return the tasks of a split with ids: the data's, or a hash of the messages."""
    prefix = f"{split}-" if has_own_data and split != "train" else ""
    texts = [json.dumps([*t.context, t.question]) if t.context else t.question for t in tasks]
    hashes = number_repeats([f"{split}-{sha(text)[:12]}" for text in texts], "-")
    return [
        replace(task, id=f"{prefix}{task.id}" if task.id else id)
        for task, id in zip(tasks, hashes, strict=True)
    ]


def _make_tasks(rows: Sequence[Row], columns: Columns, source: str) -> list[Task]:
    """Turn rows into tasks, whose ids are "" if the data has none."""
    if not rows:
        raise ConfigError(f"{source} holds no rows; expected one for each question")
    names = list(dict.fromkeys(name for row in rows for name in row))
    rows = [{name: row.get(name) for name in names} for row in rows]
    column_of = _find_columns(columns, rows[0], source)
    return [_make_task(row, column_of, f"{source}, row {i}") for i, row in enumerate(rows, 1)]


def _find_columns(columns: Columns, row: Row, source: str) -> dict[Column, str]:
    """Return the column of each role that the data has, by its first row."""
    column_of: dict[Column, str] = {}
    for role, defaults in DEFAULT_COLUMNS.items():
        column = columns.get(role)
        if column is not None and column.partition(".")[0] not in row and column not in row:
            raise ConfigError(
                f"dataset.columns.{role} is {column!r}, but {source} has the columns {list_names(row)}; "
                "name one of them"
            )
        if role not in columns:
            column = next((n for n in defaults if n in row or get_nested(row, n) is not None), None)
        if column is not None:
            column_of[role] = column
    if "question" not in column_of:
        raise ConfigError(
            f"{source} has none of the columns {', '.join(DEFAULT_COLUMNS['question'])}, only {list_names(row)}; "
            "rename the one with the questions, or name it in dataset.columns: {question: …}"
        )
    return column_of


def _make_task(row: Row, columns: Mapping[Column, str], place: str) -> Task:
    values: dict[Column, Any] = {}
    for role, column in columns.items():
        values[role] = value = get_nested(row, column, _MISSING)
        if value is _MISSING:
            raise ConfigError(
                f'{place}: has no "{column}"; add it, or name another column in '
                f"dataset.columns.{role}"
            )
    texts = {role: plain_text(values.get(role)) for role in _TEXTS}
    messages, question = read_messages(values["question"], columns["question"], place)
    answers, reasoning = reference_answers(values.get("answers"))
    return Task(
        id=texts["id"],
        question=f"{texts['context']}\n\n{question}" if texts["context"] else question,
        answers=answers,
        stratum=texts["stratum"],
        solution=texts["solution"] or reasoning,
        context=messages,
        chat=isinstance(values["question"], list),
        columns=row,
    )
