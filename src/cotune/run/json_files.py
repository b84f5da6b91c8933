"""Files that survive a kill: atomic replacement, JSON lines whose unfinished end is ignored, and locks."""

import contextlib
import json
import math
import numbers
import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from cotune.errors import ConfigError
from cotune.utils.processes import launched_rank

Row = dict[str, Any]
"""One JSON object."""

_INTEGERS = frozenset({int})


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace `path` by `content` (text as UTF-8). A reader sees the old file or the new one."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_folder(folder: Path, field: str) -> None:
    """Raise ConfigError, with the field that named it, unless a folder is there or can be made, and takes files."""
    above = folder.absolute()
    while not above.exists():
        above = above.parent
    problem = "cannot be written" if above.is_dir() else "is a file"
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ConfigError(f"{field}: {above} {problem}; choose another folder")


def write_json_atomic(path: Path, value: object) -> None:
    """Replace `path` by `value` as indented JSON. Raises TypeError as `plain` does."""
    write_atomic(path, _encode(plain(value, path.name), indent=2))


def plain(value: object, place: str) -> Any:
    """Return `value` as JSON types: tuples as lists, NaN and infinities as None, numpy scalars as Python's.

    Raises:
        TypeError: any other type; the message names its place, starting with `place`.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {_key(key, place): plain(item, f"{place}.{key}") for key, item in items}
    if isinstance(value, (list, tuple)):
        members = cast("Sequence[object]", value)
        if _INTEGERS.issuperset(map(type, members)):
            return list(members)  # token ids and masks, by the million
        return [plain(item, f"{place}[{i}]") for i, item in enumerate(members)]
    raise TypeError(f"{place} is a {type(value).__name__}; expected a value that JSON can hold")


def _key(key: object, place: str) -> str:
    if isinstance(key, str):
        return str(key)
    raise TypeError(f"{place} has the key {key!r}; JSON keys are strings")


def _encode(value: Any, indent: int | None = None) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent) + "\n"
    # A lone surrogate (some LLM replies hold one) has no UTF-8 form; as \\udXXX it is valid JSON.
    return text.encode(errors="backslashreplace")


def json_line(row: Mapping[str, object], place: str) -> bytes:
    """Return `row` as one line of a JSONL file. Raises TypeError as `plain` does."""
    return _encode(plain(row, place))


def append(path: Path, data: bytes, *, durably: bool = False) -> None:
    """Append to a file, created if missing; durably, even if the power fails."""
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        if durably:
            os.fsync(file.fileno())


def complete_lines(path: Path) -> list[bytes]:
    """Return the lines of a JSONL file without a torn last one; [] if there is no file."""
    if not path.exists():
        return []
    return path.read_bytes().split(b"\n")[:-1]


def read_jsonl(path: Path) -> list[Row]:
    """Return the finished lines of a JSONL file; [] if there is no file.

    Raises:
        ConfigError: a finished line is not JSON.
    """
    rows: list[Row] = []
    for number, line in enumerate(complete_lines(path), 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: not JSON ({error}); fix the line") from error
    return rows


def drop_torn_line(path: Path) -> None:
    """Truncate a JSONL file after its last newline."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read() != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


SUITE_LOCK = "suite.lock"  # the file in a suite's folder, locked while it is worked on
RUN_LOCK = "run.lock"  # the file in a run folder that is locked by the process that trains it
_PATIENCE = 2.0  # seconds that a killed process may take to disappear


@contextlib.contextmanager
def run_locked(folder: Path) -> Generator[None]:
    """Hold the lock of a run folder during training; if processes train together, only the first holds it."""
    if launched_rank():
        yield
        return
    busy = f"{folder} is being trained by another process; wait for it, or stop it"
    with locked(folder / RUN_LOCK, busy, _PATIENCE):
        yield


@contextlib.contextmanager
def locked(path: Path, busy: str, patience: float = 0.1) -> Generator[None]:
    """Hold the lock of a file, created if missing, which the system releases with the process.

    Raises:
        ConfigError: another process holds it, for more than `patience` seconds; `busy` is the message.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(path).acquire(timeout=patience)
    except Timeout:
        raise ConfigError(busy) from None
    with lock:
        try:
            yield
        finally:
            # Some versions of filelock remove the file, which marks the folder as a command's.
            if path.parent.is_dir() and not path.exists():
                path.touch()
