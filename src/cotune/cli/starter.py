"""`cotune init`: write a commented starter run file and the files that it names."""

from importlib.resources import as_file, files
from pathlib import Path

from cotune.errors import ConfigError
from cotune.run.json_files import check_folder, write_atomic

KINDS = {
    "single-turn": "questions answered in one turn, scored by a reward function",
    "tools": "an agent that calls your Python functions",
    "search": "questions answered with a search engine over your own corpus",
}
"""The kinds of starters, each with a short description."""
OFFLINE = "offline"
"""The starter that trains a bundled policy without a key or a network."""


def write_starter(kind: str, folder: Path) -> list[Path]:
    """Copy a starter's files into a folder, which is created if needed.

    Args:
        kind: one of `KINDS`, or `OFFLINE`, whose policy is bundled.

    Returns:
        The written files, run.yaml first.

    Raises:
        ConfigError: a file that already exists, or a folder that cannot be written.
    """
    check_folder(folder, "FOLDER")
    with as_file(files("cotune.cli") / "starters" / kind) as source:
        contents = {
            path.name: path.read_text("utf-8") for path in source.iterdir() if path.is_file()
        }
    targets = [
        folder / name for name in sorted(contents, key=lambda name: (name != "run.yaml", name))
    ]
    for target in targets:
        if target.exists():
            raise ConfigError(f"{target}: exists already; give another folder, or move it away")
    folder.mkdir(parents=True, exist_ok=True)
    for target in targets:
        write_atomic(target, contents[target.name])
    return targets
