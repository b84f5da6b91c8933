"""Ask before importing code that a run folder names: its run.yaml may be somebody else's."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import typer

from cotune.errors import ConfigError
from cotune.run.run_dir import RunDir
from cotune.utils.text import printable

_CODE = re.compile(r"(.+\.py):[^:/\\]+")


def check_trusted(folder: Path, trust: bool) -> None:
    """Check the Python files that a run folder's run.yaml names, before any is imported.

    Files below the current folder are trusted, because the user chose to work there; those inside the
    run folder are not, because cotune writes no code there.

    Args:
        folder: the run folder.
        trust: whether the user has said that its code may run.

    Raises:
        ConfigError: not a run folder; or other code is named, and the user refuses it or cannot be
            asked.
    """
    here, run = Path.cwd().resolve(), folder.resolve()
    files = [Path(name).resolve() for name in code_files(RunDir.open(folder).read_config())]
    strange = [f for f in files if not f.is_relative_to(here) or f.is_relative_to(run)]
    if trust or not strange:
        return
    shown = printable(", ".join(dict.fromkeys(map(str, strange))))
    if sys.stdin.isatty() and sys.stderr.isatty():
        asked = f"{folder}/run.yaml runs code from outside the current folder: {shown}. Run it?"
        if typer.confirm(asked, err=True):
            return
        raise ConfigError(f"{shown}: not run; nothing was loaded")
    raise ConfigError(
        f"{folder}/run.yaml runs code from outside the current folder: {shown}; look at it, then add "
        "--trust"
    )


def code_files(value: object) -> Iterator[str]:
    """Yield the files of every `file.py:name` in plain data."""
    if isinstance(value, str):
        if found := _CODE.fullmatch(value.strip()):
            yield found[1]
    elif isinstance(value, Mapping):
        for part in cast("Mapping[str, object]", value).values():
            yield from code_files(part)
    elif isinstance(value, Sequence):
        for part in cast("Sequence[object]", value):
            yield from code_files(part)
