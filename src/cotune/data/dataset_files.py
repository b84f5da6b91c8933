"""The rows of a file or of a Hugging Face data set as plain Python, each with where it stands."""
# pandas, pyarrow and datasets have no type stubs.
# pyright: basic

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from cotune.data.jsonl import json_rows, shortened
from cotune.errors import ConfigError

if TYPE_CHECKING:
    from datasets import Dataset

Row = tuple[str, Mapping[str, Any]]
"""Where a row stands ("dataset.path: data.jsonl, line 3", to start a message with), and its columns."""

Rows: TypeAlias = "Dataset | Iterable[Mapping[str, Any]]"
"""What `given_rows` takes."""

KINDS = ".jsonl, .json, .csv, .tsv or .parquet"
_SPLIT_NAME = re.compile(r"(train|validation|valid|val|dev|eval|test)(?![a-z])", re.IGNORECASE)


def file_rows(path: Path, field: str, without: Collection[str] = ()) -> list[Row]:
    """The rows of a JSONL, JSON, CSV, TSV or Parquet file, or of a folder's Parquet files by name.

    JSON is a list of objects, or one object a line. Values are as the file has them; of CSV those
    that pandas infers for a whole column, where an empty cell is missing and NA is a text.

    Args:
        path: the file or folder.
        field: of the run file, named in errors.
        without: columns of Parquet that are not read.

    Raises:
        ConfigError: no such file, one that cannot be read as what its name says, or a folder that
            holds no Parquet file, or those of several splits.
    """
    suffix = path.suffix.lower()
    if path.is_dir():
        return [row for file in _folder(path, field) for row in _parquet(file, field, without)]
    if not path.exists():
        raise ConfigError(
            f"{field}: no file {path}; name one that ends in {KINDS}, or a folder of Parquet files"
        )
    if suffix in (".jsonl", ".ndjson"):
        return list(json_rows(path, field))
    if suffix == ".json":
        return _json(path, field)
    if suffix in (".csv", ".tsv"):
        return _csv(path, field, "\t" if suffix == ".tsv" else ",")
    if suffix == ".parquet":
        return _parquet(path, field, without)
    raise ConfigError(
        f"{field}: {path} ends in {suffix or 'no suffix'}; expected {KINDS}, or a folder of Parquet "
        "files"
    )


OTHER_SOURCE = (
    "correct dataset.name, dataset.subset or the split, or download it where there is a network and "
    "name its files by dataset.path"
)
"""What to do about a data set that cannot be loaded."""


def hub_rows(
    name: str,
    subset: str | None,
    split: str,
    field: str,
    mend: str = OTHER_SOURCE,
    without: Collection[str] = (),
) -> list[Row]:
    """The rows of a split of a Hugging Face data set: from the hub, its cache, or a local clone.

    Images and audio stay undecoded.

    Args:
        name, subset, split: the data set's, its configuration's and its split's.
        field: of the run file, named in errors.
        mend: what an error says is to be done.
        without: columns that are left out.

    Raises:
        ConfigError: what `datasets.load_dataset` says against it.
    """
    from datasets import load_dataset

    try:
        loaded = load_dataset(name, subset, split=split)
    # Whatever the library raises (offline, no such name, subset or split), the field is named.
    except Exception as error:
        raise ConfigError(
            f"{field}: cannot load split {split!r} of {name!r} ({_said(error)}); {mend}"
        ) from error
    kept = loaded.select_columns([name for name in loaded.column_names if name not in without])
    return _numbered(_plain(kept), f"{field}: {name}, split {split}")


def given_rows(rows: Rows, field: str) -> list[Row]:
    """The rows of a `datasets.Dataset`, or mappings as they are.

    Args:
        rows: the data.
        field: named in errors.

    Raises:
        ConfigError: several splits at once, or something that is no mapping.
    """
    if isinstance(rows, Mapping):
        raise ConfigError(
            f"{field}: is a {type(rows).__name__} of {', '.join(map(str, list(rows)[:5]))}; expected "
            "rows: give one split of it (data['train'])"
        )
    # Not `Dataset` by its class: who has none need not import the library.
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


def _folder(path: Path, field: str) -> list[Path]:
    files = sorted(path.glob("*.parquet"))
    if not files:
        raise ConfigError(
            f"{field}: the folder {path} holds no Parquet file; name the folder or the file that "
            "does, or, of a folder as the hub has it, dataset.name"
        )
    splits = {match[1].lower() for file in files if (match := _SPLIT_NAME.match(file.name))}
    if len(splits) > 1:
        raise ConfigError(
            f"{field}: the folder {path} holds files of several splits ({', '.join(sorted(splits))}); "
            "name one file of it, or load it with dataset.name and dataset.split"
        )
    return files


def _parquet(path: Path, field: str, without: Collection[str] = ()) -> list[Row]:
    # Not load_dataset: that would leave a copy of every file in the user's cache.
    import pyarrow.parquet as parquet
    from datasets import Dataset
    from datasets.table import InMemoryTable

    try:
        names = parquet.read_schema(path).names
        table = parquet.read_table(path, columns=[name for name in names if name not in without])
        rows = _plain(Dataset(InMemoryTable(table)))
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        raise _unreadable(path, field, "Parquet", error) from error
    return _numbered(rows, f"{field}: {path}")


def _csv(path: Path, field: str, separator: str) -> list[Row]:
    import pandas

    try:
        frame = pandas.read_csv(
            path, sep=separator, keep_default_na=False, na_values=[""], low_memory=False
        )
    except (OSError, ValueError) as error:
        raise _unreadable(path, field, "CSV", error) from error
    values = frame.astype(object).where(frame.notna(), None)
    rows = cast("list[dict[str, Any]]", values.to_dict("records"))
    return _numbered(rows, f"{field}: {path}")


def _json(path: Path, field: str) -> list[Row]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        if not text.lstrip().startswith("["):
            return list(json_rows(path, field))
        rows: object = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, field, "JSON", error) from error
    for i, row in enumerate(cast("list[object]", rows), 1):
        if not isinstance(row, dict):
            raise ConfigError(
                f"{field}: {path}, row {i}: {shortened(row)}; expected a JSON object in braces"
            )
    return _numbered(cast("list[dict[str, Any]]", rows), f"{field}: {path}")


def _plain(dataset: "Dataset") -> list[dict[str, Any]]:
    """All rows as plain Python; what is stored as JSON is read, media are left as bytes."""
    return cast("list[dict[str, Any]]", dataset.with_format(None).to_list())


def _numbered(rows: Sequence[Mapping[str, Any]], where: str) -> list[Row]:
    return [(f"{where}, row {i}", row) for i, row in enumerate(rows, 1)]


def _unreadable(path: Path, field: str, kind: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{field}: {path} cannot be read as {kind} ({_said(error)}); mend or rename the file"
    )


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:240]
