"""Rows of files and of Hugging Face data sets, as plain Python."""
# pyarrow and datasets have no type stubs.
# pyright: basic

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from cotune.errors import ConfigError
from cotune.utils.text import named, shorten

if TYPE_CHECKING:
    from datasets import Dataset

Row: TypeAlias = Mapping[str, Any]
"""The value of each column."""

Rows: TypeAlias = "Dataset | Iterable[Row]"
"""Rows that `check_rows` accepts."""

_KINDS = ".jsonl, .json, .csv or .parquet"


def file_rows(path: Path, field: str) -> list[Row]:
    """Read a JSONL, JSON, CSV or Parquet file.

    JSON is a list of objects, or one object a line. Values are as in the file: the cells of a CSV are
    texts, and an empty one is missing. Errors name `field`, of the run file.

    Raises:
        ConfigError: the file does not exist or does not have the format that its name says.
    """
    if not path.exists():
        raise ConfigError(
            f"{field}: no file {path}; relative paths start from {Path.cwd().name}, the folder that cotune is started "
            f"in; name one that ends in {_KINDS}"
        )
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        raise ConfigError(
            f"{field}: {path} ends in {suffix or 'no suffix'}; expected {_KINDS}: a folder is loaded by dataset.name"
        )
    try:
        rows = _READERS[suffix](path, field)
    except ConfigError:
        raise
    except Exception as error:  # each library has its own
        raise ConfigError(
            f"{field}: {path} cannot be read ({named(error)}); fix or rename the file"
        ) from error
    return check_rows(rows, f"{field}: {path}")


def hub_rows(name: str, subset: str | None, split: str, field: str) -> list[Row]:
    """Read a split of a data set from the hub, its cache, or a folder; images and audio are not decoded."""
    from datasets import load_dataset

    try:
        return load_dataset(name, subset, split=split).to_list()
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
    if isinstance(rows, str) or not (hasattr(rows, "__iter__") or hasattr(rows, "__getitem__")):
        raise ConfigError(
            f"{source} is {shorten(rows)}; expected rows, as datasets.load_dataset returns them"
        )
    if isinstance(rows, Mapping):
        raise ConfigError(
            f"{source}: is a {type(rows).__name__} of {', '.join(map(str, list(rows)[:5]))}; expected "
            "rows: give one split of it (data['train'])"
        )
    mappings = list(rows)
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
        rows = list(csv.DictReader(file, strict=True))
    for i, row in enumerate(rows, 1):
        if None in row:
            raise ConfigError(
                f"{field}: {path}, row {i} has more cells than the header; put texts that hold a comma "
                "in double quotes"
            )
    return [{name: cell or None for name, cell in row.items()} for row in rows]


def _parquet(path: Path, field: str) -> list[Row]:
    # load_dataset would leave a copy of every file in the user's cache.
    import pyarrow.parquet as parquet

    return parquet.read_table(path).to_pylist()


_READERS: Mapping[str, Callable[[Path, str], list[Row]]] = {
    ".jsonl": _json,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}
"""Reads a file, by its suffix; the second argument starts errors."""
