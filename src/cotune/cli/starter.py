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
OFFLINE = "offline"
"""The starter that trains a bundled policy without a key or a network."""


def write_starter(kind: str, folder: Path) -> list[Path]:
    """Copy a starter's files into a folder, which is created if needed; return them, run.yaml first.

    Raises ConfigError: a file that already exists, or a folder that cannot be written.
    """
    check_folder(folder, "FOLDER")
    with as_file(files("cotune.cli") / "starters" / kind) as source:
        paths = sorted(source.iterdir(), key=lambda path: (path.name != "run.yaml", path.name))
        contents = {folder / path.name: path.read_text("utf-8") for path in paths if path.is_file()}
    for target in contents:
        if target.exists():
            raise ConfigError(f"{target}: exists already; give another folder, or move it away")
    folder.mkdir(parents=True, exist_ok=True)
    for target, text in contents.items():
        write_atomic(target, text)
    return list(contents)
