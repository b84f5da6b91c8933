"""A user's data as tasks: the `dataset` section, its files or hub data set, columns and splits."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from cotune.data.cells import (
    ALIAS_COLUMNS,
    ANSWER_COLUMNS,
    listed,
    nested,
    parse_lists,
    plain_text,
    plain_value,
    read_messages,
    reference_answers,
    shortened,
)
from cotune.data.rows import Row, Rows, file_rows, given_rows, hub_rows
from cotune.data.splits import SPLITS, hold_out, numbered, sha, warn, warn_of_overlaps
from cotune.errors import ConfigError
from cotune.types import Task
from cotune.utils.validation import Model, describe

Column = Literal["question", "context", "answers", "solution", "stratum", "id"]

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


class DatasetConfig(Model):
    """Questions of your own, from a file or from the Hugging Face hub."""

    path: Path | None = None
    """A JSONL, JSON, CSV or Parquet file, or a folder of Parquet files."""
    name: str | None = None
    """A data set of the Hugging Face hub, or of its cache."""
    subset: str | None = None
    """The hub data set's configuration."""
    split: str = "train"
    """The hub data set's split that is trained on; a file is one split."""
    validation: int | Path = Field(default=100)
    """Number of questions held out of the training data for choosing the best policy (by a hash of
    their text, at most a tenth of all; 0 with `evaluation.every: 0`); or another file; or another split
    of a hub data set."""
    test: int | Path = Field(default=200)
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

    @field_validator("validation", "test", mode="before")
    @classmethod
    def _held_out(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, int | str | Path) and not isinstance(value, bool):
            return value
        raise ValueError(
            f"dataset.{info.field_name} is {value!r}; expected a number of questions to hold out, a file, "
            "or a split of the hub's data set"
        )

    @model_validator(mode="after")
    def _one_source(self) -> "DatasetConfig":
        if (self.path is None) == (self.name is None):
            fields = "both path and name" if self.path else "neither path nor name"
            raise ValueError(f"dataset: has {fields}; expected one of them")
        for name in ("subset", "split"):
            default = type(self).model_fields[name].default
            if self.path is not None and getattr(self, name) != default:
                raise ValueError(
                    f"dataset.{name} is for a data set of the hub (name), but path is set; remove one"
                )
        for name, least in (("validation", 0), ("test", 1)):
            if isinstance(value := getattr(self, name), int) and value < least:
                raise ValueError(f"dataset.{name} is {value}; expected {least} or more")
        if "question" in self.columns and self.columns["question"] is None:
            raise ValueError("dataset.columns.question is null; expected the questions' column")
        return self


def read_dataset(config: DatasetConfig) -> dict[str, list[Task]]:
    """Read the tasks of each split, in the data's order.

    Every row is one task; its `columns` are the whole row. Questions are held out of the
    training data by a hash of their text (`hold_out`): shuffling changes nothing, added rows change
    little, and equal questions stay together. A row without an id gets one made of its split and question;
    of equal questions the later ones are numbered. Ids of held-out rows from a separate file or split are
    prefixed with the split's name.

    Raises:
        ConfigError: no such file or data set, a column missing or of the wrong type, a repeated id,
            or too few questions to hold some out; names the file and row.
    """
    path = config.path
    name = config.name
    field, train = ("dataset.path", path) if name is None else ("dataset.name", config.split)
    source = f"{field}: {path}" if name is None else f"{field}: {name}, split {config.split},"
    sizes: dict[str, int] = {}
    tasks: dict[str, list[Task]] = {}
    for split, value in (
        ("train", train),
        ("validation", config.validation),
        ("test", config.test),
    ):
        if isinstance(value, int):
            sizes[split] = value
            continue
        if split != "train":
            field = f"dataset.{split}"
        if name is None:
            rows = file_rows(cast(Path, value), field)
        else:
            rows = hub_rows(name, config.subset, str(value), field)
        tasks[split] = _tasks(rows, config, source if split == "train" else f"{field}: {value}")
    tasks = _split(tasks, sizes, source, config.model_fields_set)
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
        columns: the column of each role, as in a run file's `dataset.columns`.
        validation: number of questions held out of `dataset`, at most a tenth; or rows.
        test: the same, at most a fifth.

    Raises:
        ConfigError: as `read_dataset`; names the row, from 1.
    """
    try:
        # The section requires a path; it is not read.
        config = DatasetConfig(path=Path("dataset"), columns=cast(Any, dict(columns or {})))
    except ValidationError as error:
        raise ConfigError(f"dataset.{describe(error, DatasetConfig)}") from error
    tasks = {"train": _tasks(given_rows(dataset, "dataset"), config, "dataset")}
    sizes: dict[str, int] = {}
    for split, value in (("validation", validation), ("test", test)):
        field = f"dataset.{split}"
        if not isinstance(value, int):
            tasks[split] = _tasks(given_rows(value, field), config, field)
        elif value < 0:
            raise ConfigError(f"{field} is {value}; expected 0 or more, or rows")
        else:
            sizes[split] = value
    return _split(tasks, sizes, "dataset", sizes)


def tasks_of_rows(
    rows: Sequence[Row], columns: Mapping[Column, str | None], source: str, split: str
) -> list[Task]:
    """Turn rows into the tasks of one split, with its name before their ids; `source` starts messages."""
    config = DatasetConfig(path=Path("dataset"), columns=dict(columns))
    return _with_ids(_tasks(rows, config, source), split, True)


def _split(
    tasks: Mapping[str, list[Task]],
    sizes: Mapping[str, int],
    source: str,
    asked: Collection[str],
) -> dict[str, list[Task]]:
    """Hold questions out for the splits without data, and return the tasks of all with their ids.

    `asked` names the splits whose number is the user's own, not a default.
    """
    places = hold_out([_key(task) for task in tasks["train"]], sizes, source)
    held_out = {split: [tasks["train"][i] for i in rows] for split, rows in places.items()}
    parts = {**tasks, **held_out}
    short = {split for split in sizes if split in asked and len(parts[split]) < sizes[split]}
    if short:
        counts = [
            f"{len(rows)} {split}" + (f" ({sizes[split]} asked)" if split in short else "")
            for split, rows in parts.items()
        ]
        warn(f"dataset: {sum(map(len, parts.values()))} questions: {', '.join(counts)}")
    warn_of_overlaps({split: [_key(task) for task in parts[split]] for split in ("train", *tasks)})
    return {split: _with_ids(parts[split], split, split not in sizes) for split in SPLITS}


def _key(task: Task) -> str:
    """Return what the user asks in a task, which decides whether it is held out."""
    return "\n".join([text for role, text in task.context if role != "system"] + [task.question])


def _with_ids(tasks: Sequence[Task], split: str, has_own_data: bool) -> list[Task]:
    """Return the tasks of a split with ids: the data's, or a hash of the messages."""
    prefix = f"{split}-" if has_own_data and split != "train" else ""
    texts = [json.dumps([*t.context, t.question]) if t.context else t.question for t in tasks]
    hashes = numbered([f"{split}-{sha(text)[:12]}" for text in texts], "-")
    return [
        replace(task, id=f"{prefix}{task.id}" if task.id else id)
        for task, id in zip(tasks, hashes, strict=True)
    ]


def _tasks(rows: Sequence[Row], config: DatasetConfig, source: str) -> list[Task]:
    """Turn rows into tasks, whose ids are "" if the data has none."""
    if not rows:
        raise ConfigError(f"{source} holds no rows; expected one for each question")
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    columns = _columns(config, rows, names, source)
    aliases = None
    if "answers" in columns and "answers" not in config.columns:
        aliases = next((name for name in ALIAS_COLUMNS if name in names), None)
    if aliases is not None:
        warn(
            f"{source}: the accepted answers are those of {columns['answers']} and of {aliases}; name one "
            "in dataset.columns.answers to read it alone"
        )
    # Lists that a CSV file or a column of texts holds as JSON, or as Python writes them.
    lists = {
        column: parse_lists([row.get(column) for _, row in rows])
        for column in (columns["question"], columns.get("answers"), aliases)
        if column is not None
    }
    if texts := [column for column, values in lists.items() if values is not None]:
        warn(
            f"{source}: {listed(sorted(texts))} holds lists written as text, which are read as lists"
        )
    first_rows: dict[str, str] = {}
    tasks: list[Task] = []
    for i, (place, cells) in enumerate(rows):
        row = {name: cells.get(name) for name in names}
        parsed = row | {column: values[i] for column, values in lists.items() if values}
        task = replace(_task(parsed, columns, aliases, place), columns=row)
        if task.id and first_rows.setdefault(task.id, place) != place:
            raise ConfigError(
                f"{place}: the id {task.id!r} came before, at {first_rows[task.id]}; give each row its "
                "own, or name another column in dataset.columns.id (null: a hash of the question)"
            )
        tasks.append(task)
    return tasks


def _columns(
    config: DatasetConfig, rows: Sequence[Row], names: Sequence[str], source: str
) -> dict[Column, str]:
    """Return the column of each role that the data has."""
    column_of: dict[Column, str] = {}
    for role, defaults in DEFAULT_COLUMNS.items():
        if role in config.columns and config.columns[role] is None:
            continue
        column = config.columns.get(role)
        if column is not None and column.partition(".")[0] not in names and column not in names:
            raise ConfigError(
                f"dataset.columns.{role} is {column!r}, but {source} has the columns {listed(names)}; "
                "name one of them"
            )
        if column is None:
            first = rows[0][1]
            column = next((n for n in defaults if n in names or nested(first, n) is not None), None)
        if column is not None:
            column_of[role] = column
    if "question" not in column_of:
        raise ConfigError(
            f"dataset.columns.question: {source.partition(': ')[2] or source} has none of the columns "
            f"{', '.join(DEFAULT_COLUMNS['question'])}, only {listed(names)}; name the one with the "
            "questions in dataset.columns: {question: …}"
        )
    return column_of


def _task(
    row: Mapping[str, Any], columns: Mapping[Column, str], aliases: str | None, place: str
) -> Task:
    values: dict[Column, Any] = {}
    for role, column in columns.items():
        values[role] = value = nested(row, column, _MISSING)
        if value is _MISSING:
            raise ConfigError(
                f'{place}: has no "{column}"; add it, or name another column in '
                f"dataset.columns.{role}"
            )
    messages, question = read_messages(values["question"], columns["question"], place)
    answers, reasoning = _answers(values.get("answers"), columns.get("answers", ""), place)
    if aliases is not None:
        answers = tuple(dict.fromkeys(answers + reference_answers(row[aliases])[0]))
    context = _text(values.get("context"), "context", columns, place)
    return Task(
        id=_text(values.get("id"), "id", columns, place),
        question=f"{context}\n\n{question}" if context else question,
        answers=answers,
        stratum=_text(values.get("stratum"), "stratum", columns, place),
        solution=_text(values.get("solution"), "solution", columns, place) or reasoning,
        context=messages,
        chat=isinstance(values["question"], list),
    )


def _answers(value: Any, column: str, place: str) -> tuple[tuple[str, ...], str]:
    """Return the accepted answers, and the reasoning of the first one in GSM8K's form."""
    answers, reasoning = reference_answers(value)
    value = plain_value(value)
    members = cast("list[object]", value) if isinstance(value, list) else [value]
    if answers or all(member in (None, "") or isinstance(member, str) for member in members):
        return answers, reasoning
    below = list(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else []
    fix = (
        f"name a field below it (such as dataset.columns.answers: {column}.{below[0]})"
        if below
        else "fix the row, or name another column in dataset.columns.answers (null: none)"
    )
    raise ConfigError(
        f'{place}: "{column}" is {shortened(cast(object, value))}; expected text, a number, true or false, a '
        f"list of them, or null; {fix}"
    )


def _text(value: Any, role: Column, columns: Mapping[Column, str], place: str) -> str:
    """Return a text or number as text, of an id only a text or an integer; "" if there is none."""
    if value is None or value == "":
        return ""
    text = plain_text(value)
    is_id = isinstance(plain_value(value), str | int) and not isinstance(plain_value(value), bool)
    if not text or (role == "id" and not is_id):
        kinds = "text or an integer" if role == "id" else "text"
        raise ConfigError(
            f'{place}: "{columns[role]}" is {shortened(value)}; expected {kinds}, or name another column '
            f"in dataset.columns.{role}"
        )
    return text
