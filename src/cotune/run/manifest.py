"""The manifest of a folder: the size of every file, so that a missing or cut-off file is noticed."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from cotune.run.json_files import write_json_atomic

MANIFEST = "cotune-manifest.json"
"""The file of a folder that lists the others; it is written last, so a folder that has it is complete."""


def write_manifest(folder: Path, extra: Iterable[Path] = ()) -> None:
    """Write the manifest of a folder whose files are all written.

    Args:
        folder: the folder.
        extra: files elsewhere that belong to it.
    """
    inside = sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / MANIFEST)
    sizes = {
        Path(os.path.relpath(path, folder)).as_posix(): path.stat().st_size
        for path in (*inside, *extra)
    }
    write_json_atomic(folder / MANIFEST, {"schema_version": 2, "sizes": sizes})


def damaged_file(folder: Path) -> Path | None:
    """Return a file that is missing or has another size than the manifest says; None if there is none.

    The manifest itself can be damaged or missing.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        sizes = {folder / name: int(size) for name, size in manifest["sizes"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return folder / MANIFEST
    for path, size in sizes.items():
        if not path.is_file() or path.stat().st_size != size:
            return Path(os.path.normpath(path))
    return None
