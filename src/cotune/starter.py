"""`cotune init`: a run file to begin with, commented, and the files that it names."""

import shutil
from importlib.resources import as_file, files
from pathlib import Path

from cotune.contracts import ConfigError

KINDS = {
    "single-turn": "questions answered in one turn, scored by a reward function",
    "tools": "an agent that calls your Python functions",
    "search": "questions answered with a search engine over your own corpus",
}
"""What there is a starter for, and in a few words what it is."""


def write_starter(kind: str, folder: Path) -> list[Path]:
    """Copies a starter's files into a folder, which is made if need be.

    Returns:
        What was written, run.yaml first.

    Raises:
        ConfigError: no such kind, or a file of that name is there; nothing is written then.
    """
    if kind not in KINDS:
        raise ConfigError(f"--kind is {kind!r}; expected one of {', '.join(KINDS)}")
    with as_file(files("cotune") / "starters" / kind) as source:
        names = sorted(
            (path.name for path in source.iterdir() if path.is_file()),
            key=lambda name: (name != "run.yaml", name),
        )
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder}: is a file; give a folder")
        if taken := [name for name in names if (folder / name).exists()]:
            raise ConfigError(
                f"{folder / taken[0]}: is there already; give another folder, or move it away"
            )
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(source / name, folder / name)
    return [folder / name for name in names]
