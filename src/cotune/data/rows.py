"""Rows of files and of Hugging Face data sets, as plain Python."""
# pyarrow and datasets have no type stubs.
# pyright: basic

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from cotune.data.splits import warn
from cotune.errors import ConfigError
from cotune.utils.text import named, shorten

if TYPE_CHECKING:
    from datasets import Dataset

Row: TypeAlias = Mapping[str, Any]
"""The value of each column."""

Rows: TypeAlias = "Dataset | Iterable[Row]"
"""Rows that `check_rows` accepts."""

_KINDS = ".jsonl, .json, .csv, .tsv or .parquet, or a folder of Parquet files"
_SPLIT_NAME = re.compile(r"(train|validation|valid|val|dev|eval|test)(?![a-z])", re.IGNORECASE)


def file_rows(path: Path, field: str) -> list[Row]:
    """Read a JSONL, JSON, CSV, TSV or Parquet file, or a folder's Parquet files sorted by name.

    JSON is a list of objects, or one object a line. Values are as in the file: the cells of a CSV are
    texts, and an empty one is missing. Errors name `field`, of the run file.

    Raises:
        ConfigError: the file does not exist or does not have the format that its name says, or the
            folder holds no Parquet file or files of several splits.
    """
    if not path.exists():
        raise ConfigError(
            f"{field}: no file {path} in {Path.cwd().name}, the folder that cotune is started in; name one "
            f"that ends in {_KINDS}"
        )
    rows: list[Row] = []
    for file in _parquet_files(path, field) if path.is_dir() else [path]:
        suffix = file.suffix.lower()
        if suffix not in _READERS:
            raise ConfigError(f"{field}: {path} ends in {suffix or 'no suffix'}; expected {_KINDS}")
        try:
            rows += _READERS[suffix](file, field)
        except ConfigError:
            raise
        except Exception as error:  # each library has its own
            raise ConfigError(
                f"{field}: {file} cannot be read ({named(error)}); fix or rename the file"
            ) from error
    return check_rows(rows, f"{field}: {path}")


def hub_rows(name: str, subset: str | None, split: str, field: str) -> list[Row]:
    """Read a split of a data set from the hub, its cache, or a local clone; images and audio are not decoded."""
    from datasets import load_dataset

    try:
        return _plain(load_dataset(name, subset, split=split))
    except Exception as error:  # offline, or no such name, subset or split
        raise ConfigError(
            f"{field}: cannot load split {split!r} of {name!r} ({named(error)}); correct the name or the split, "
            "or if the hub cannot be reached, download it elsewhere and name its files"
        ) from error


def check_rows(rows: Rows, source: str) -> list[Row]:
    """Return the rows of a `datasets.Dataset`, in its format, or of mappings; errors start with `source`.

    Raises:
        ConfigError: several splits at once, or a row that is not a mapping.
    """
    if isinstance(rows, Mapping):
        raise ConfigError(
            f"{source}: is a {type(rows).__name__} of {', '.join(map(str, list(rows)[:5]))}; expected "
            "rows: give one split of it (data['train'])"
        )
    # Duck typing, so that rows of other kinds do not import the library.
    is_dataset = hasattr(rows, "with_format") and hasattr(rows, "to_list")
    try:
        mappings = _plain(cast("Dataset", rows)) if is_dataset else list(rows)
    except TypeError:
        raise ConfigError(
            f"{source}: is {shorten(rows)}; expected a datasets.Dataset, or a list of mappings"
        ) from None
    for i, row in enumerate(mappings, 1):
        if not isinstance(row, Mapping):
            raise ConfigError(
                f"{source}, row {i}: {shorten(row)}; expected a mapping of a column to its value"
            )
    return cast("list[Row]", mappings)


def json_lines(path: Path, field: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the JSON object of each line that is not blank, with its position to start messages with."""
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    place = f"{field}: {path}, line {number}"
                    yield place, _read_object(line.strip(), place)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{field}: cannot read {path} ({named(error)}); name a JSONL file in UTF-8"
        ) from error


def _read_object(line: str, place: str) -> dict[str, Any]:
    try:
        row: object = json.loads(line)
        reason = "no object in braces"
    except (ValueError, RecursionError) as error:
        row = None
        # The message's own line number would contradict the file's.
        reason = f"not JSON ({type(error).__name__}: {getattr(error, 'msg', str(error))})"
    if not isinstance(row, dict):
        raise ConfigError(f"{place}: {reason}: {shorten(line)}; put one JSON object on each line")
    return row


def _json(path: Path, field: str) -> list[Row]:
    text = path.read_text(encoding="utf-8-sig")
    if text.lstrip().startswith("["):
        return json.loads(text)
    return [row for _, row in json_lines(path, field)]


def _csv(path: Path, field: str) -> list[Row]:
    # Fields of any length; the library's limit is 131,072 characters.
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as file:
        separator = "\t" if path.suffix.lower() == ".tsv" else ","
        rows = list(csv.DictReader(file, delimiter=separator, strict=True))
    for i, row in enumerate(rows, 1):
        # Separators at the end of a line are no cells.
        if any(row.pop(None, ())):  # pyright: ignore
            raise ConfigError(
                f"{field}: {path}, row {i} has more cells than the header; put texts that hold a separator "
                "in double quotes"
            )
    return [{name: cell or None for name, cell in row.items()} for row in rows]


def _parquet_files(path: Path, field: str) -> list[Path]:
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

    table = parquet.read_table(path)
    # The library has no type for these.
    unread = [
        column.name
        for column in table.schema
        if str(column.type).startswith(("map<", "list_view<", "large_list_view<"))
    ]
    if unread:
        warn(f"{field}: {path}: the columns {', '.join(unread)} are maps or views and are not read")
    return _plain(Dataset(InMemoryTable(table.drop_columns(unread))))


def _plain(dataset: "Dataset") -> list[Row]:
    """Return all rows: without a set format as plain Python, with JSON columns parsed and media as bytes."""
    if dataset.format["type"] is not None:
        return [dict(row) for row in cast("Iterable[Row]", dataset)]
    import numpy

    rows = cast("list[dict[str, Any]]", dataset.to_list())
    for name, feature in dataset.features.items():
        kind = getattr(feature, "dtype", None)
        if kind in ("float16", "float32"):
            as_single = numpy.dtype(kind).type
            for row in rows:
                # As a double, single precision's 0.1 would be 0.10000000149011612.
                row[name] = None if row[name] is None else float(str(as_single(row[name])))
    return cast("list[Row]", rows)


_READERS: Mapping[str, Callable[[Path, str], list[Row]]] = {
    ".jsonl": _json, ".ndjson": _json, ".json": _json, ".csv": _csv, ".tsv": _csv, ".parquet": _parquet,
}  # fmt: skip
"""Reads a file, by its suffix; the second argument starts errors."""
