"""A program that runs commands in forks of a process without torch, and tells what became of each.

Reads a JSON list of [folder, arguments] and writes a JSON list of status, output, error output and the
heavy packages that the command imported.
"""

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HEAVY = ("torch", "transformers", "datasets", "trl", "verl", "ray")


def run(folder: str, arguments: list[str], told: Path) -> None:
    """Run a command in this process, which ends."""
    from cotune.cli import app

    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(told / name, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["cotune", *arguments]
    status: Any = 0
    try:
        app.main()
    except SystemExit as end:
        status = end.code or 0
    sys.stdout.flush()
    heavy = [name for name in HEAVY if name in sys.modules]
    (told / "end").write_text(json.dumps([status, heavy]))
    os._exit(0)


def main() -> None:
    for name in ("train", "plan", "doctor", "evaluate", "starter"):
        importlib.import_module(f"cotune.cli.{name}")  # once, for all forks
    found: list[Any] = []
    for folder, arguments in json.load(sys.stdin):
        with tempfile.TemporaryDirectory() as told:
            child = os.fork()
            if child == 0:
                try:
                    run(folder, arguments, Path(told))
                finally:
                    os._exit(1)  # a traceback is in err, and there is no end
            os.waitpid(child, 0)
            out, err = (Path(told, name).read_text() for name in ("out", "err"))
            end = Path(told, "end")
            status, heavy = json.loads(end.read_text()) if end.is_file() else (1, [])
            found.append([status, out, err, heavy])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
