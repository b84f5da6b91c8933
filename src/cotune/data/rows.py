"""Rows of files and of Hugging Face data sets as plain Python, each with its position for messages."""
# pyarrow and datasets have no type stubs.
# pyright: basic

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from cotune.data.cells import shortened
from cotune.data.splits import warn
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
    return _number(_plain(loaded), f"{field}: {name}, split {split}")


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
    iterable: Any = _plain(cast("Dataset", rows)) if is_dataset else rows
    try:
        mappings = list(iterable)
    except TypeError:
        raise ConfigError(
            f"{field}: is {shortened(rows)}; expected a datasets.Dataset, or a list of mappings"
        ) from None
    for i, row in enumerate(mappings, 1):
        if not isinstance(row, Mapping):
            raise ConfigError(
                f"{field}, row {i}: {shortened(row)}; expected a mapping of a column to its value"
            )
    return _number(mappings, field)


def json_rows(path: Path, field: str) -> Iterator[Row]:
    """Yield the object of each line that is not blank."""
    number = 0
    try:
        with path.open("rb") as lines:
            for number, raw in enumerate(lines, 1):
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                if text.strip():
                    place = f"{field}: {path}, line {number}"
                    yield place, _object(text, place)
    except OSError as error:
        raise ConfigError(
            f"{field}: cannot read {path} ({error.strerror}); name a JSONL file"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{field}: {path} is not UTF-8 in line {number} ({error.reason}); save it as UTF-8"
        ) from error


def _object(line: str, place: str) -> Mapping[str, Any]:
    """Return the JSON object of a line; ConfigError, starting with `where`, if it is not one."""
    try:
        row = _loaded(line)
    except (ValueError, RecursionError) as error:
        # The decoder's own line number would contradict the file's.
        message = str(error)
        if isinstance(error, json.JSONDecodeError):
            message = f"{error.msg} at character {error.pos + 1}"
        reason = f"{type(error).__name__}: {message}"
        raise ConfigError(
            f"{place}: not JSON ({reason}): {shortened(line.strip())}; put one JSON object on each line"
        ) from error
    if not isinstance(row, dict):
        raise ConfigError(f"{place}: {shortened(row)}; expected a JSON object in braces")
    return cast(dict[str, Any], row)


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
        table = parquet.read_table(path)
        # The library has no type for these.
        odd = [
            column.name
            for column in table.schema
            if str(column.type).startswith(("map<", "list_view<", "large_list_view<"))
        ]
        if odd:
            warn(
                f"{field}: {path}: the columns {', '.join(odd)} are maps or views and are not read"
            )
        rows = _plain(Dataset(InMemoryTable(table.drop_columns(odd))))
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        raise _unreadable(path, field, "Parquet", error) from error
    return _number(rows, f"{field}: {path}")


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
    return _number(rows, f"{field}: {path}")


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
    return _number(cast("list[dict[str, Any]]", rows), f"{field}: {path}")


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
    import numpy

    rows = cast("list[dict[str, Any]]", dataset.to_list())
    for name, feature in dataset.features.items():
        kind = getattr(feature, "dtype", None)
        if kind in ("float16", "float32"):
            shorten = numpy.dtype(kind).type
            for row in rows:
                # As a double, single precision's 0.1 would be 0.10000000149011612.
                row[name] = None if row[name] is None else float(str(shorten(row[name])))
    return rows


def _number(rows: Sequence[Mapping[str, Any]], place: str) -> list[Row]:
    return [(f"{place}, row {i}", row) for i, row in enumerate(rows, 1)]


def _unreadable(path: Path, field: str, kind: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{field}: {path} cannot be read as {kind} ({named(error)}); fix or rename the file"
    )
