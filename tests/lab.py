"""The lab beside cotune, whose world `geo` tests stand on: it is on Python's path, and its kinds are registered.

A lab that was installed earlier, or from another checkout, may lack new kinds.
"""

import os
import sys
import tomllib
from pathlib import Path

LAB = Path(__file__).parents[1] / "lab"


def register_lab() -> None:
    """Put the lab first on the path, here and in processes to come, beside what an installation says of it."""
    project = tomllib.loads((LAB / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"]
    for group, entries in project["entry-points"].items():
        lines.append("\n".join([f"[{group}]", *(f"{name} = {entries[name]}" for name in entries)]))
    metadata = LAB / f"{project['name'].replace('-', '_')}.egg-info"
    metadata.mkdir(exist_ok=True)
    for name, text in zip(("PKG-INFO", "entry_points.txt"), lines, strict=True):
        file = metadata / name
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
    if sys.path[0] != str(LAB):
        sys.path.insert(0, str(LAB))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(LAB), *(p for p in paths if p and p != str(LAB))]
    )
