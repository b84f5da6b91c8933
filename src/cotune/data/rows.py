"""Rows of files and of Hugging Face data sets as plain Python, each with its position for messages."""
# pyarrow and datasets have no type stubs.
# pyright: basic

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from cotune.errors import ConfigError
from cotune.utils.text import named

if TYPE_CHECKING:
    from datasets import Dataset

Row = tuple[str, Mapping[str, Any]]
"""A row's position ("dataset.path: data.jsonl, line 3", to start a message with), and its columns."""

Rows: TypeAlias = "Dataset | Iterable[Mapping[str, Any]]"
"""Rows that `given_rows` accepts."""

KINDS = ".jsonl, .json, .csv, .tsv or .parquet"

OTHER_SOURCE = (
    "correct dataset.name, dataset.subset or the split, or download it on a machine with a network and "
    "name its files by dataset.path"
)
"""The fix for a data set that cannot be loaded."""

ANSWER_COLUMNS = ("answers", "answer", "golden_answers", "ground_truth", "final_answer")
"""Columns with usual names of the accepted answers, in the order in which they are tried."""

_ROLES = ("system", "user", "assistant")
# GSM8K's answers: reasoning, and the final answer on the last line.
_FINAL_LINE = re.compile(r"^#### *(?P<final>\S.*)\Z", re.MULTILINE)
_SPLIT_NAME = re.compile(r"(train|validation|valid|val|dev|eval|test)(?![a-z])", re.IGNORECASE)


def file_rows(path: Path, field: str) -> list[Row]:
    """Read a JSONL, JSON, CSV, TSV or Parquet file, or a folder's Parquet files sorted by name.

    JSON is a list of objects, or one object a line. Values are as in the file; in CSV a
    column is one of numbers if each is written as Python writes it, and an empty cell is missing.

    Args:
        path: the file or folder.
        field: the run file's field, named in errors.

    Raises:
        ConfigError: the file does not exist or does not have the format that its name says, or the
            folder holds no Parquet file or files of several splits.
    """
    suffix = path.suffix.lower()
    if path.is_dir():
        return [row for file in _folder(path, field) for row in _parquet(file, field)]
    if not path.exists():
        raise ConfigError(
            f"{field}: no file {path} in {Path.cwd().name}, the folder that cotune is started in; name one "
            f"that ends in {KINDS}, or a folder of Parquet files"
        )
    if suffix in (".jsonl", ".ndjson"):
        return list(json_rows(path, field))
    if suffix == ".json":
        return _json(path, field)
    if suffix in (".csv", ".tsv"):
        return _csv(path, field, "\t" if suffix == ".tsv" else ",")
    if suffix == ".parquet":
        return _parquet(path, field)
    raise ConfigError(
        f"{field}: {path} ends in {suffix or 'no suffix'}; expected {KINDS}, or a folder of Parquet "
        "files"
    )


def hub_rows(
    name: str, subset: str | None, split: str, field: str, fix: str = OTHER_SOURCE
) -> list[Row]:
    """Read a split of a Hugging Face data set from the hub, its cache, or a local clone.

    Images and audio are not decoded.

    Args:
        field: the run file's field, named in errors.
        fix: the end of an error message.

    Raises:
        ConfigError: `datasets.load_dataset` failed; gives its reason.
    """
    from datasets import load_dataset

    try:
        loaded = load_dataset(name, subset, split=split)
    except Exception as error:  # offline, or no such name, subset or split
        raise ConfigError(
            f"{field}: cannot load split {split!r} of {name!r} ({named(error)}); {fix}"
        ) from error
    return _numbered(_plain(loaded), f"{field}: {name}, split {split}")


def given_rows(rows: Rows, field: str) -> list[Row]:
    """Return the rows of a `datasets.Dataset`, in its format, or of mappings; errors name `field`.

    Raises:
        ConfigError: several splits at once, or a row that is not a mapping.
    """
    if isinstance(rows, Mapping):
        raise ConfigError(
            f"{field}: is a {type(rows).__name__} of {', '.join(map(str, list(rows)[:5]))}; expected "
            "rows: give one split of it (data['train'])"
        )
    # Duck typing, so that rows of other kinds do not import the library.
    is_dataset = hasattr(rows, "with_format") and hasattr(rows, "to_list")
    listed: Any = _plain(cast("Dataset", rows)) if is_dataset else rows
    try:
        found = list(listed)
    except TypeError:
        raise ConfigError(
            f"{field}: is {shortened(rows)}; expected a datasets.Dataset, or a list of mappings"
        ) from None
    for i, row in enumerate(found, 1):
        if not isinstance(row, Mapping):
            raise ConfigError(
                f"{field}, row {i}: {shortened(row)}; expected a mapping of a column to its value"
            )
    return _numbered(found, field)


def json_rows(path: Path, field: str) -> Iterator[Row]:
    """Yield the object of each line that is not blank."""
    number = 0
    try:
        with path.open("rb") as lines:
            for number, raw in enumerate(lines, 1):
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                if text.strip():
                    where = f"{field}: {path}, line {number}"
                    yield where, _object(text, where)
    except OSError as error:
        raise ConfigError(
            f"{field}: cannot read {path} ({error.strerror}); name a JSONL file"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{field}: {path} is not UTF-8 in line {number} ({error.reason}); save it as UTF-8"
        ) from error


def _object(line: str, where: str) -> Mapping[str, Any]:
    """Return the JSON object of a line; ConfigError, starting with `where`, if it is not one."""
    try:
        row = _loaded(line)
    except (ValueError, RecursionError) as error:
        # The decoder's own line number would contradict the file's.
        said = str(error)
        if isinstance(error, json.JSONDecodeError):
            said = f"{error.msg} at character {error.pos + 1}"
        reason = f"{type(error).__name__}: {said}"
        raise ConfigError(
            f"{where}: not JSON ({reason}): {shortened(line.strip())}; put one JSON object on each line"
        ) from error
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: {shortened(row)}; expected a JSON object in braces")
    return cast(dict[str, Any], row)


def read_messages(
    value: object, column: str, where: str
) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return the messages before a question, as (role, content), and the question.

    Args:
        value: a text, or chat messages that end with the user's.
        column, where: the column and the row, named in errors.
    """
    messages = [{"role": "user", "content": value}]
    if isinstance(value, list):
        check_messages(value, column, where)
        messages = [flat_message(message) for message in cast("list[Any]", value)]
    for i, message in enumerate(messages):
        if message["role"] not in _ROLES or message.get("tool_calls"):
            raise ConfigError(
                f'{where}: message {i} of "{column}": is of role {message["role"]!r} or a tool call; '
                f"expected text of {', '.join(_ROLES)}: leave out tool calls"
            )
    if not messages or messages[-1]["role"] != "user":
        last = messages[-1]["role"] if messages else "nothing"
        raise ConfigError(
            f'{where}: "{column}" ends with {last}; expected messages that end with the user\'s: '
            "leave out the policy's reply"
        )
    *before, asked = messages
    question: object = asked["content"]
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(
            f'{where}: "{column}" is {shortened(question)}; expected text, or chat messages that end '
            "with the user's"
        )
    context = tuple((str(m["role"]), str(m["content"])) for m in before)
    try:
        "".join([question, *(content for _, content in context)]).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f'{where}: "{column}" cannot be encoded as UTF-8 ({error.reason}); fix the row'
        ) from error
    return context, question.strip()


def check_messages(messages: Sequence[object], column: str, where: str) -> None:
    """Raise ConfigError for something that is not a chat message of text, or of tool calls."""
    for i, message in enumerate(messages):
        place = f'{where}: message {i} of "{column}"'
        fields = cast("Mapping[str, Any]", message if isinstance(message, Mapping) else {})
        if "role" not in fields:
            raise ConfigError(f"{place}: {shortened(message)}; expected {{role: …, content: …}}")
        content: object = fields.get("content")
        if not isinstance(content, str | list | None):
            raise ConfigError(f"{place}: content is {shortened(content)}; expected text")
        for part in cast("list[object]", content) if isinstance(content, list) else ():
            part_fields = cast("Mapping[str, Any]", part if isinstance(part, Mapping) else {})
            kind = part_fields.get("type", type(part).__name__)
            if kind != "text" or not isinstance(part_fields.get("text"), str):
                raise ConfigError(f"{place}: holds content of type {kind}; expected only text")


def flat_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without the fields that Arrow filled with None, its content as one text."""
    fields = {name: value for name, value in message.items() if value is not None}
    content = fields.get("content", "")
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in cast("list[Any]", content))
    return {**fields, "content": content}


def nested(row: Mapping[str, Any], column: str, default: object = None) -> Any:
    """Return a column's value; a dotted name that is not a column leads to a nested field.

    A row may have null in place of what holds the field.
    """
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


def shortened(value: object) -> str:
    """Return a value's repr, of at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def listed(names: Sequence[str]) -> str:
    """Return the first column names, for a message."""
    shown = ", ".join(names[:12])
    return f"{shown}, …" if len(names) > 12 else shown or "none"


def _folder(path: Path, field: str) -> list[Path]:
    files = sorted(path.glob("*.parquet"))
    if not files:
        raise ConfigError(
            f"{field}: the folder {path} holds no Parquet file; name the file, or the folder "
            "that holds some; for a data set of the hub set dataset.name"
        )
    splits = {match[1].lower() for file in files if (match := _SPLIT_NAME.match(file.name))}
    if len(splits) > 1:
        raise ConfigError(
            f"{field}: the folder {path} holds files of several splits ({', '.join(sorted(splits))}); "
            "name one file of it, or load it with dataset.name and dataset.split"
        )
    return files


def _parquet(path: Path, field: str) -> list[Row]:
    # load_dataset would leave a copy of every file in the user's cache.
    import pyarrow.parquet as parquet
    from datasets import Dataset
    from datasets.table import InMemoryTable

    try:
        rows = _plain(Dataset(InMemoryTable(parquet.read_table(path))))
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        raise _unreadable(path, field, "Parquet", error) from error
    return _numbered(rows, f"{field}: {path}")


def _csv(path: Path, field: str, separator: str) -> list[Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            # Fields of any length; the library's limit is 131,072 characters.
            csv.field_size_limit(2**31 - 1)
            table = list(csv.reader(file, delimiter=separator, strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise _unreadable(path, field, "CSV", error) from error
    names, *cells = [row for row in table if row] or [[]]
    for i, row in enumerate(cells, 1):
        if any(row[len(names) :]):
            raise ConfigError(
                f"{field}: {path}, row {i} has more cells than the header; put texts that hold a separator "
                "in double quotes"
            )
    columns = [
        _typed([row[i] if i < len(row) and row[i] else None for row in cells])
        for i in range(len(names))
    ]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return _numbered(rows, f"{field}: {path}")


def _typed(column: list[str | None]) -> Sequence[object]:
    """Return a column's numbers if each is written as Python writes it, so that 007 and 1.50 stay texts."""
    for kind in (int, float):
        try:
            values = [None if text is None else kind(text) for text in column]
        except ValueError:
            continue
        as_written = [None if v is None else str(v) for v in values] == column
        if as_written and not {"nan", "inf", "-inf"}.intersection(column):
            return values
    return column


def _json(path: Path, field: str) -> list[Row]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        if not text.lstrip().startswith("["):
            return list(json_rows(path, field))
        rows = _loaded(text)
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, field, "JSON", error) from error
    for i, row in enumerate(cast("list[object]", rows), 1):
        if not isinstance(row, dict):
            raise ConfigError(
                f"{field}: {path}, row {i}: {shortened(row)}; expected a JSON object in braces"
            )
    return _numbered(cast("list[dict[str, Any]]", rows), f"{field}: {path}")


def plain_text(value: object) -> str:
    """Return a text, finite number or boolean as text; "" for anything else."""
    value = plain_value(value)
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, float):
        # In a Parquet column, a missing value turns whole numbers into floats.
        whole = value.is_integer() and abs(value) < 2**53
        return str(int(value) if whole else value) if math.isfinite(value) else ""
    return str(value) if isinstance(value, int | Decimal) else ""


def plain_value(value: Any) -> Any:
    """Return a scalar, array or tensor as Python's own number or list; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def reference_answers(value: Any) -> tuple[tuple[str, ...], str]:
    """Return the accepted answers in a value, and the reasoning of the first in GSM8K's form, "" without.

    They are a text, finite number or boolean, or a list of them; anything else holds none.
    """
    value = plain_value(value)
    members = cast("list[object]", value) if isinstance(value, list) else [value]
    texts = [plain_text(member) for member in members]
    if not all(texts):
        return (), ""
    finals = [_FINAL_LINE.search(text) for text in texts]
    reasoning = next((t for t, final in zip(texts, finals, strict=True) if final), "")
    return tuple(
        final["final"].strip() if final else text for text, final in zip(texts, finals, strict=True)
    ), reasoning


def _loaded(text: str) -> object:
    value: object = json.loads(text)
    # A lone surrogate ("\ud800") is legal JSON, but not UTF-8.
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _plain(dataset: "Dataset") -> list[dict[str, Any]]:
    """Return all rows: without a set format as plain Python, with JSON columns parsed and media as bytes."""
    if dataset.format["type"] is not None:
        return [dict(row) for row in cast("Iterable[Mapping[str, Any]]", dataset)]
    return cast("list[dict[str, Any]]", dataset.to_list())


def _numbered(rows: Sequence[Mapping[str, Any]], where: str) -> list[Row]:
    return [(f"{where}, row {i}", row) for i, row in enumerate(rows, 1)]


def _unreadable(path: Path, field: str, kind: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{field}: {path} cannot be read as {kind} ({named(error)}); fix or rename the file"
    )
