"""A user's data as tasks: a file, or a data set of the Hugging Face hub."""

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from cotune.data.dataset_files import Row, Rows, file_rows, given_rows, hub_rows
from cotune.data.dataset_splits import (
    SPLITS,
    Question,
    hold_out,
    sha,
    warn,
    warn_of_overlaps,
    with_ids,
)
from cotune.data.jsonl import shortened
from cotune.data.options import DatasetConfig
from cotune.errors import ConfigError
from cotune.types import Task
from cotune.utils.validation import describe

DEFAULT_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "question": ("question", "prompt", "problem"),
    "answers": ("answers", "answer", "golden_answers", "ground_truth"),
    "solution": ("solution",),
    "stratum": ("stratum",),
    "id": ("id",),
}
"""What is read where `dataset.columns` names no column: the first that the data has."""
_ROLES = ("system", "user", "assistant")
# GSM8K's answers: reasoning, and on the last line what counts.
_FINAL_LINE = re.compile(r"^#### *(?P<final>\S.*)\Z", re.MULTILINE)
_MISSING = object()


def read_dataset(config: DatasetConfig) -> dict[str, list[Task]]:
    """The tasks of each split, in the data's order.

    Every row is one question; its `columns` are the whole row. A number of questions to hold out is
    taken from the training data by a hash of their texts: shuffling changes nothing, added rows
    change little, and equal questions stay together. Rows without an id have one made of their
    split and question; of those that ask the same the first is kept, and a warning says how many
    were not. In a file or split of its own, a held-out row's id has the split's name before it.

    Raises:
        ConfigError: no such file or data set, a column missing or of the wrong kind, an id that
            comes twice, too few questions to hold some out; names the file and row.
    """
    questions = {"train": _read(config, "train")}
    wanted: dict[str, int] = {}
    for split in ("validation", "test"):
        value: int | Path = getattr(config, split)
        if isinstance(value, int):
            wanted[split] = value
        else:
            questions[split] = _read(config, split)
    questions |= hold_out(questions["train"], wanted, _source(config, "train"))
    warn_of_overlaps(questions)
    tasks = {split: with_ids(questions[split], split, split not in wanted) for split in SPLITS}
    return {**tasks, "train": tasks["train"][: config.limit]}


def tasks_from(
    dataset: Rows,
    *,
    columns: Mapping[str, str | None] | None = None,
    validation: "int | Rows" = 0,
    test: "int | Rows" = 0,
) -> dict[str, list[Task]]:
    """The tasks of each split of rows that are at hand: for an environment made in Python.

    Rows become tasks, and some are held out, as `read_dataset` says. A split that has none is empty.

    Args:
        dataset: a `datasets.Dataset`, or any mappings of a column to its value; what is trained on.
        columns: which columns hold what, as a run file's `dataset.columns` says it.
        validation: how many questions are held out of `dataset`, at most a tenth; or rows of their own.
        test: likewise, at most a fifth.

    Raises:
        ConfigError: as `read_dataset`; names the row, from 1.
    """
    try:
        # A path, since a section has one; it is not read.
        config = DatasetConfig(path=Path("dataset"), columns=cast(Any, columns or {}))
    except ValidationError as error:
        raise ConfigError(f"dataset.{describe(error, DatasetConfig)}") from error
    questions = {"train": _unique(given_rows(dataset, "dataset"), config, "dataset")}
    wanted: dict[str, int] = {}
    for split, value in (("validation", validation), ("test", test)):
        if isinstance(value, int):
            if value < 0:
                raise ConfigError(f"dataset.{split} is {value}; expected 0 or more, or rows")
            wanted[split] = value
        else:
            field = f"dataset.{split}"
            questions[split] = _unique(given_rows(value, field), config, field)
    questions |= hold_out(questions["train"], wanted, "dataset")
    warn_of_overlaps(questions)
    return {split: with_ids(questions[split], split, split not in wanted) for split in SPLITS}


def tasks_of_rows(rows: Sequence[Row], source: str, split: str) -> list[Task]:
    """The tasks of a split of which nothing is held out; ids have its name before them.

    Args:
        rows: with the columns question, answers, solution, stratum and id.
        source: what to start a message with.
        split: its name.

    Raises:
        ConfigError: no row, a column of the wrong kind, or an id that comes twice.
    """
    roles = cast(Any, {role: role for role in DEFAULT_COLUMNS})
    config = DatasetConfig(path=Path("dataset"), columns=roles)
    return with_ids(_unique(rows, config, source), split, True)


def _read(config: DatasetConfig, split: str) -> list[Question]:
    """The questions of a file or of a hub data set's split."""
    return _unique(_rows(config, split), config, _source(config, split))


def _unique(rows: Sequence[Row], config: DatasetConfig, source: str) -> list[Question]:
    """The questions of some rows, without those that come twice."""
    if not rows:
        raise ConfigError(f"{source} holds no rows; expected one for each question")
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    columns = _columns(config, names, source)
    kept: dict[str, Question] = {}
    for where, row in rows:
        question = _question({name: row.get(name) for name in names}, columns, where)
        known = question.task.id or question.digest
        if question.task.id and known in kept:
            raise ConfigError(
                f"{where}: the id {known!r} came before, at {kept[known].where}; give each row its "
                "own, or name another column by dataset.columns.id (null: a hash of the question)"
            )
        kept.setdefault(known, question)
    if dropped := len(rows) - len(kept):
        warn(f"{source}: {dropped} of {len(rows)} rows ask a question again; the first is kept")
    return list(kept.values())


def _rows(config: DatasetConfig, split: str) -> list[Row]:
    if split == "train":
        if config.path is not None:
            return file_rows(config.path, "dataset.path")
        return hub_rows(cast(str, config.name), config.subset, config.split, "dataset.name")
    value, field = str(getattr(config, split)), f"dataset.{split}"
    if config.name is not None:
        return hub_rows(config.name, config.subset, value, field)
    return file_rows(Path(value), field)


def _source(config: DatasetConfig, split: str) -> str:
    """The field and the file or data set, to start a message with."""
    if split != "train":
        return f"dataset.{split}: {getattr(config, split)}"
    if config.path is not None:
        return f"dataset.path: {config.path}"
    return f"dataset.name: {config.name}, split {config.split},"


# ---- columns


def _columns(config: DatasetConfig, names: Sequence[str], source: str) -> dict[str, str]:
    """Which column holds what; without entries for what the data does not have."""
    found: dict[str, str] = {}
    for role, defaults in DEFAULT_COLUMNS.items():
        if role in config.columns and config.columns[cast(Any, role)] is None:
            continue
        given = config.columns.get(cast(Any, role))
        if given is not None and given.partition(".")[0] not in names and given not in names:
            raise ConfigError(
                f"dataset.columns.{role} is {given!r}, but {source} has the columns {_listed(names)}; "
                "name one of them"
            )
        column = given or next((name for name in defaults if name in names), None)
        if column is not None:
            found[role] = column
    if "question" not in found:
        raise ConfigError(
            f"dataset.columns.question: {source} has none of the columns "
            f"{', '.join(DEFAULT_COLUMNS['question'])}, only {_listed(names)}; name the one with the "
            "questions by dataset.columns: {question: …}"
        )
    return found


def _value(row: Mapping[str, Any], column: str) -> Any:
    """A column's value; of a dotted name that is no column, what stands below its first part."""
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _MISSING
        value = cast("Mapping[str, Any]", value)[part]
    return value


def _question(row: Mapping[str, Any], columns: Mapping[str, str], where: str) -> Question:
    found: dict[str, Any] = {}
    for role, column in columns.items():
        found[role] = value = _value(row, column)
        if value is _MISSING:
            raise ConfigError(
                f'{where}: has no "{column}"; add it, or name another column by '
                f"dataset.columns.{role}"
            )
    context, question = _asked(found["question"], columns["question"], where)
    answers, reasoning = _answers(found.get("answers"), columns.get("answers", ""), where)
    task = Task(
        id=_id(found.get("id"), columns.get("id", ""), where),
        question=question,
        answers=answers,
        stratum=_text(found.get("stratum"), "stratum", columns, where),
        solution=_text(found.get("solution"), "solution", columns, where) or reasoning,
        context=context,
        columns=row,
    )
    told = json.dumps([*context, question]) if context else question
    asked = [content for role, content in context if role != "system"]
    return Question(task, sha(told)[:12], "\n".join([*asked, question]), where)


def _asked(value: object, column: str, where: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """What stands before a question, as (role, content), and the question."""
    turns: list[tuple[str, object]] = [("user", value)]
    if isinstance(value, list):
        messages = enumerate(cast("list[object]", value))
        turns = [
            _message(message, f'{where}: message {i} of "{column}"') for i, message in messages
        ]
    if not turns or turns[-1][0] != "user":
        last = turns[-1][0] if turns else "nothing"
        raise ConfigError(
            f'{where}: "{column}" ends with {last}; expected messages that end with the user\'s: '
            "leave out what the policy is to write"
        )
    context, question = cast("tuple[tuple[str, str], ...]", tuple(turns[:-1])), turns[-1][1]
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(
            f'{where}: "{column}" is {shortened(question)}; expected text, or chat messages that end '
            "with the user's"
        )
    try:
        "".join([question, *(content for _, content in context)]).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f'{where}: "{column}" is no text that UTF-8 can hold ({error.reason}); mend the row'
        ) from error
    return context, question.strip()


def _message(value: object, where: str) -> tuple[str, str]:
    """A chat message as (role, content)."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {shortened(value)}; expected {{role: …, content: …}}")
    message = cast("Mapping[str, Any]", value)
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES or message.get("tool_calls"):
        came = "a tool call" if role in _ROLES else f"of role {role!r}"
        raise ConfigError(
            f"{where}: is {came}; expected text of {', '.join(_ROLES)}: leave out what tools did"
        )
    if isinstance(content, list):
        parts = [_part(part, where) for part in cast("list[object]", content)]
        content = "\n".join(parts)
    if not isinstance(content, str):
        raise ConfigError(f"{where}: content is {shortened(content)}; expected text")
    return role, content


def _part(value: object, where: str) -> str:
    """The text of a part of a message's content."""
    if isinstance(value, Mapping):
        part = cast("Mapping[str, Any]", value)
        text, kind = part.get("text"), part.get("type")
    else:
        text, kind = None, type(value).__name__
    if kind != "text" or not isinstance(text, str):
        raise ConfigError(f"{where}: holds content of type {kind}; expected text alone")
    return text


def _answers(value: object, column: str, where: str) -> tuple[tuple[str, ...], str]:
    """Accepted answers, and the reasoning that the first one in GSM8K's form ends."""
    if value is None:
        return (), ""
    came = shortened(value)
    members = cast("list[object]", value) if isinstance(value, list) else [value]
    texts = [_plain(member) for member in members]
    if not all(texts):
        below = list(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else []
        mend = (
            f"name what is below it (dataset.columns.answers: {column}.{below[0]}, say)"
            if below
            else "mend the row, or name another column by dataset.columns.answers (null: none)"
        )
        raise ConfigError(
            f'{where}: "{column}" is {came}; expected text, a number, true or false, a '
            f"list of them, none blank, or null; {mend}"
        )
    finals = [_FINAL_LINE.search(text) for text in texts]
    reasoning = next((t for t, final in zip(texts, finals, strict=True) if final), "")
    answers = [
        final["final"].strip() if final else text for text, final in zip(texts, finals, strict=True)
    ]
    return tuple(answers), reasoning


def _plain(value: object) -> str:
    """A text or a finite number or a truth value as text; "" for anything else."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, float):
        # CSV makes floats of whole numbers where one is missing.
        whole = value.is_integer() and abs(value) < 2**53
        return str(int(value) if whole else value) if isfinite(value) else ""
    return str(value) if isinstance(value, int | Decimal) else ""


def _text(value: Any, role: str, columns: Mapping[str, str], where: str) -> str:
    """A text or number as text; "" where there is none."""
    if value is None or value == "":
        return ""
    if not (text := _plain(value)):
        raise ConfigError(
            f'{where}: "{columns[role]}" is {shortened(value)}; expected text, or name another column '
            f"by dataset.columns.{role}"
        )
    return text


def _id(value: Any, column: str, where: str) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ConfigError(
            f'{where}: "{column}" is {shortened(value)}; expected text or an integer, or name another '
            "column by dataset.columns.id"
        )
    return str(value)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:12])
    return f"{shown}, …" if len(names) > 12 else shown or "none"
