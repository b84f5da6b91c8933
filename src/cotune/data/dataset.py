"""A user's data as tasks: the `dataset` section, its files or hub data set, columns and splits."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from cotune.data.rows import (
    Row,
    Rows,
    file_rows,
    given_rows,
    hub_rows,
    listed,
    nested,
    plain_scalar,
    plain_text,
    read_messages,
    shortened,
)
from cotune.data.splits import (
    SPLITS,
    Question,
    hold_out,
    sha,
    warn,
    warn_if_fewer,
    warn_of_overlaps,
    with_ids,
)
from cotune.errors import ConfigError
from cotune.types import Task
from cotune.utils.validation import Model, describe

Column = Literal["question", "answers", "solution", "stratum", "id"]

DEFAULT_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "question": ("question", "prompt", "problem"),
    "answers": ("answers", "answer", "golden_answers", "ground_truth", "final_answer"),
    "solution": ("solution",),
    "stratum": ("stratum",),
    "id": ("id",),
}
"""Columns that are tried, in this order, if `dataset.columns` names none."""

# GSM8K's answers: reasoning, and the final answer on the last line.
_FINAL_LINE = re.compile(r"^#### *(?P<final>\S.*)\Z", re.MULTILINE)

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
    their text, at most a tenth of all); or another file; or another split of a hub data set."""
    test: int | Path = Field(default=200)
    """Number of questions held out for the final evaluation, at most a fifth; or a file or split."""
    columns: dict[Column, str | None] = Field(default_factory=dict[Column, str | None])
    """The column of each role. Without an entry the column of that name is read (for questions also
    "prompt" and "problem", for answers also "answer", "golden_answers", "ground_truth" and "final_answer"); null
    reads none. `reward_model.ground_truth` is a field below a column. Only the question is required:
    a text, or chat messages that end with the user's."""
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
            given = "both path and name" if self.path else "neither path nor name"
            raise ValueError(f"dataset: has {given}; expected one of them")
        for name in ("subset", "split"):
            default = type(self).model_fields[name].default
            if self.path is not None and getattr(self, name) != default:
                raise ValueError(
                    f"dataset.{name} is for a data set of the hub (name), but path is set; remove one"
                )
        for name in ("validation", "test"):
            if isinstance(value := getattr(self, name), int) and value < 1:
                raise ValueError(f"dataset.{name} is {value}; expected 1 or more")
        if "question" in self.columns and self.columns["question"] is None:
            raise ValueError("dataset.columns.question is null; expected the questions' column")
        return self


def read_dataset(config: DatasetConfig, *, repeated: bool = False) -> dict[str, list[Task]]:
    """Read the tasks of each split, in the data's order.

    Every row is one question; its `columns` are the whole row. Questions are held out of the
    training data by a hash of their text: shuffling changes nothing, added rows change little, and
    equal questions stay together. A row without an id gets one made of its split and question. If rows
    have the same question, the first is kept and a warning counts the others. Ids of held-out rows from
    a separate file or split are prefixed with the split's name.

    Args:
        repeated: keep rows with the same question as questions of their own, for environments that
            make different tasks of them.

    Raises:
        ConfigError: no such file or data set, a column missing or of the wrong type, a repeated id,
            or too few questions to hold some out; names the file and row.
    """
    given = {split: getattr(config, split) for split in ("validation", "test")}
    wanted = {split: value for split, value in given.items() if isinstance(value, int)}
    questions = {split: _read(config, split, repeated) for split in SPLITS if split not in wanted}
    tasks = _split(questions, wanted, _source(config, "train"), config.model_fields_set)
    return {**tasks, "train": tasks["train"][: config.limit]}


def _split(
    questions: Mapping[str, list[Question]],
    wanted: Mapping[str, int],
    source: str,
    asked: Collection[str],
) -> dict[str, list[Task]]:
    """Hold questions out for the splits without data, and return the tasks of all.

    `asked` names the splits whose number is the user's own, not a default.
    """
    parts = {**questions, **hold_out(questions["train"], wanted, source)}
    warn_if_fewer(parts, {split: n for split, n in wanted.items() if split in asked})
    warn_of_overlaps(parts)
    return {split: with_ids(parts[split], split, split not in wanted) for split in SPLITS}


def tasks_from(
    dataset: Rows,
    *,
    columns: Mapping[str, str | None] | None = None,
    validation: "int | Rows" = 0,
    test: "int | Rows" = 0,
    repeated: bool = False,
) -> dict[str, list[Task]]:
    """Turn rows into the tasks of each split, for an environment made in Python.

    Rows become tasks, and some are held out, as in `read_dataset`. A split without rows is empty.

    Args:
        dataset: training rows: a `datasets.Dataset`, or mappings of a column to its value.
        columns: the column of each role, as in a run file's `dataset.columns`.
        validation: number of questions held out of `dataset`, at most a tenth; or rows.
        test: the same, at most a fifth.
        repeated: keep rows with the same question, as `read_dataset` does for `kind: trl`.

    Raises:
        ConfigError: as `read_dataset`; names the row, from 1.
    """
    try:
        # The section requires a path; it is not read.
        config = DatasetConfig(path=Path("dataset"), columns=cast(Any, columns or {}))
    except ValidationError as error:
        raise ConfigError(f"dataset.{describe(error, DatasetConfig)}") from error
    questions = {"train": _unique(given_rows(dataset, "dataset"), config, "dataset", repeated)}
    wanted: dict[str, int] = {}
    for split, value in (("validation", validation), ("test", test)):
        if isinstance(value, int):
            if value < 0:
                raise ConfigError(f"dataset.{split} is {value}; expected 0 or more, or rows")
            wanted[split] = value
        else:
            field = f"dataset.{split}"
            questions[split] = _unique(given_rows(value, field), config, field, repeated)
    return _split(questions, wanted, "dataset", wanted)


def tasks_of_rows(rows: Sequence[Row], source: str, split: str) -> list[Task]:
    """Turn rows into the tasks of one split, with the split's name before their ids.

    Their columns are question, answers, solution, stratum and id; `source` starts error messages.
    """
    roles = cast(Any, {role: role for role in DEFAULT_COLUMNS})
    config = DatasetConfig(path=Path("dataset"), columns=roles)
    return with_ids(_unique(rows, config, source), split, True)


def _read(config: DatasetConfig, split: str, repeated: bool) -> list[Question]:
    """Read the questions of a file or of a hub data set's split."""
    field = "dataset.path" if split == "train" else f"dataset.{split}"
    if config.name is not None:
        of_hub = config.split if split == "train" else str(getattr(config, split))
        field = "dataset.name" if split == "train" else field
        rows = hub_rows(config.name, config.subset, of_hub, field)
    else:
        path = config.path if split == "train" else getattr(config, split)
        rows = file_rows(cast(Path, path), field)
    return _unique(rows, config, _source(config, split), repeated)


def _unique(
    rows: Sequence[Row], config: DatasetConfig, source: str, repeated: bool = False
) -> list[Question]:
    """Turn rows into questions, without repetitions unless those are wanted."""
    if not rows:
        raise ConfigError(f"{source} holds no rows; expected one for each question")
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    columns = _columns(config, names, source)
    kept: dict[str, Question] = {}
    seen: dict[str, int] = {}
    for where, row in rows:
        question = _question({name: row.get(name) for name in names}, columns, where)
        if repeated and not question.task.id:
            times = seen[question.digest] = seen.get(question.digest, -1) + 1
            if times:
                question = replace(
                    question, digest=f"{question.digest}-{times}", key=f"{question.key}\n{times}"
                )
        known = question.task.id or question.digest
        if question.task.id and known in kept:
            raise ConfigError(
                f"{where}: the id {known!r} came before, at {kept[known].where}; give each row its "
                "own, or name another column in dataset.columns.id (null: a hash of the question)"
            )
        kept.setdefault(known, question)
    if dropped := len(rows) - len(kept):
        warn(f"{source}: {dropped} of {len(rows)} rows repeat a question; the first is kept")
    return list(kept.values())


def _source(config: DatasetConfig, split: str) -> str:
    """Return the field and the file or data set, to start a message with."""
    if split != "train":
        return f"dataset.{split}: {getattr(config, split)}"
    if config.path is not None:
        return f"dataset.path: {config.path}"
    return f"dataset.name: {config.name}, split {config.split},"


def _columns(config: DatasetConfig, names: Sequence[str], source: str) -> dict[str, str]:
    """Return the column of each role that the data has."""
    found: dict[str, str] = {}
    for role, defaults in DEFAULT_COLUMNS.items():
        if role in config.columns and config.columns[cast(Any, role)] is None:
            continue
        given = config.columns.get(cast(Any, role))
        if given is not None and given.partition(".")[0] not in names and given not in names:
            raise ConfigError(
                f"dataset.columns.{role} is {given!r}, but {source} has the columns {listed(names)}; "
                "name one of them"
            )
        column = given or next((name for name in defaults if name in names), None)
        if column is not None:
            found[role] = column
    if "question" not in found:
        raise ConfigError(
            f"dataset.columns.question: {source.partition(': ')[2] or source} has none of the columns "
            f"{', '.join(DEFAULT_COLUMNS['question'])}, only {listed(names)}; name the one with the "
            "questions in dataset.columns: {question: …}"
        )
    return found


def _question(row: Mapping[str, Any], columns: Mapping[str, str], where: str) -> Question:
    found: dict[str, Any] = {}
    for role, column in columns.items():
        found[role] = value = nested(row, column, _MISSING)
        if value is _MISSING:
            raise ConfigError(
                f'{where}: has no "{column}"; add it, or name another column in '
                f"dataset.columns.{role}"
            )
    context, question = read_messages(found["question"], columns["question"], where)
    answers, reasoning = _answers(found.get("answers"), columns.get("answers", ""), where)
    task = Task(
        id=_id(found.get("id"), columns.get("id", ""), where),
        question=question,
        answers=answers,
        stratum=_text(found.get("stratum"), "stratum", columns, where),
        solution=_text(found.get("solution"), "solution", columns, where) or reasoning,
        context=context,
        chat=isinstance(found["question"], list),
        columns=row,
    )
    text = json.dumps([*context, question]) if context else question
    asked = [content for role, content in context if role != "system"]
    return Question(task, sha(text)[:12], "\n".join([*asked, question]), where)


def _answers(value: object, column: str, where: str) -> tuple[tuple[str, ...], str]:
    """Return the accepted answers, and the reasoning of the first one in GSM8K's form."""
    if value is None:
        return (), ""
    came = shortened(value)
    members = cast("list[object]", value) if isinstance(value, list) else [value]
    texts = [plain_text(member) for member in members]
    if not all(texts):
        below = list(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else []
        fix = (
            f"name a field below it (such as dataset.columns.answers: {column}.{below[0]})"
            if below
            else "fix the row, or name another column in dataset.columns.answers (null: none)"
        )
        raise ConfigError(
            f'{where}: "{column}" is {came}; expected text, a number, true or false, a '
            f"list of them, none blank, or null; {fix}"
        )
    finals = [_FINAL_LINE.search(text) for text in texts]
    reasoning = next((t for t, final in zip(texts, finals, strict=True) if final), "")
    answers = [
        final["final"].strip() if final else text for text, final in zip(texts, finals, strict=True)
    ]
    return tuple(answers), reasoning


def _text(value: Any, role: str, columns: Mapping[str, str], where: str) -> str:
    """Return a text or number as text; "" if there is none."""
    if value is None or value == "":
        return ""
    if not (text := plain_text(value)):
        raise ConfigError(
            f'{where}: "{columns[role]}" is {shortened(value)}; expected text, or name another column '
            f"in dataset.columns.{role}"
        )
    return text


def _id(value: Any, column: str, where: str) -> str:
    value = plain_scalar(value)
    if value is None or value == "":
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ConfigError(
            f'{where}: "{column}" is {shortened(value)}; expected text or an integer, or name another '
            "column in dataset.columns.id"
        )
    return str(value)
