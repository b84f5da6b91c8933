"""Hashes that show whether files are still as written: manifests of folders, sealed JSON objects."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from cotune.run.json_files import Row, plain, write_json_atomic
from cotune.utils.files import sha256_of

MANIFEST = "cotune-manifest.json"
"""The file of a folder that lists the hashes of the others; it is written last."""
_SEAL = "sha256"
_THREADS = 4  # hashing releases the interpreter's lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Record the contents of a complete folder.

    Attributes:
        files: SHA-256 in hexadecimal of each file, by its path relative to the folder.
        logs: (bytes, SHA-256 of them) of each log of the run at that moment, by name.
    """

    files: Mapping[str, str]
    logs: Mapping[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])

    def write(self, folder: Path) -> None:
        """Write the manifest into the folder."""
        write_json_atomic(
            folder / MANIFEST,
            sealed({"schema_version": 1, "files": dict(self.files), "logs": dict(self.logs)}),
        )

    def damaged(self, folder: Path) -> Path | None:
        """Return a file that is missing or not as written; None if there is none."""
        return damaged_file(folder, self.files)


def damaged_by_manifest(folder: Path) -> Path | None:
    """Return a file of a folder that is missing or not as its manifest says; None if there is none.

    The manifest itself can be damaged; a folder without one is not checked.
    """
    try:
        manifest = read_manifest(folder)
    except ValueError:
        return folder / MANIFEST
    return None if manifest is None else manifest.damaged(folder)


def read_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of a folder; None if it has none.

    Raises:
        ValueError: it is damaged.
    """
    try:
        row = unsealed(json.loads((folder / MANIFEST).read_bytes()))
    except FileNotFoundError:
        return None
    try:
        logs = {name: (int(size), str(digest)) for name, (size, digest) in row["logs"].items()}
        return Manifest(files=dict(row["files"]), logs=logs)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("it is not a manifest") from error


def hashes(folder: Path, extra: Iterable[Path] = ()) -> dict[str, str]:
    """Return the SHA-256 of each file in a folder and below it, except of its manifest.

    Args:
        folder: the folder.
        extra: files elsewhere; their paths are also relative to the folder.
    """
    inside = sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / MANIFEST)
    return hashes_of(folder, (*inside, *extra))


def hashes_of(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of files, by their paths relative to a folder."""
    names = [Path(os.path.relpath(path, folder)).as_posix() for path in files]
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(names, pool.map(sha256_of, [folder / name for name in names]), strict=True))


def damaged_file(folder: Path, files: Mapping[str, str]) -> Path | None:
    """Return a file of `files` that is missing or has another hash; None if there is none."""

    def differs(name: str) -> bool:
        try:
            return sha256_of(folder / name) != files[name]
        except OSError:
            return True

    with ThreadPoolExecutor(_THREADS) as pool:
        wrong = [name for name, bad in zip(files, pool.map(differs, files), strict=True) if bad]
    return Path(os.path.normpath(folder / wrong[0])) if wrong else None


def sealed(row: Mapping[str, Any]) -> Row:
    """Return a JSON object with a hash of its content, which `unsealed` checks."""
    known = cast("Row", plain(row, "object"))
    return known | {_SEAL: _seal(known)}


def unsealed(row: object) -> Row:
    """Return a JSON object without its seal. One that was never sealed is returned as it is.

    Raises:
        ValueError: not an object, or its content is not what was sealed.
    """
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    known = cast("Row", row)
    content = {name: value for name, value in known.items() if name != _SEAL}
    if known.get(_SEAL, _seal(content)) != _seal(content):
        raise ValueError("its content is not what was written")
    return content


def _seal(content: Row) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
