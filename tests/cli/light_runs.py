"""A program that runs commands one after the other without torch, and tells what became of each.

Reads a JSON list of [folder, arguments] and writes a JSON list of status, output, error output and the
heavy packages that are imported by then.
"""

import contextlib
import io
import json
import os
import sys
from typing import Any

from cotune.cli import app

HEAVY = ("torch", "transformers", "datasets", "trl", "verl", "ray")


def run(folder: str, arguments: list[str]) -> list[Any]:
    """Run a command in this process."""
    os.chdir(folder)
    sys.argv = ["cotune", *arguments]
    out, err = io.StringIO(), io.StringIO()
    status: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app.main()
        except SystemExit as end:
            status = end.code or 0
    heavy = [name for name in HEAVY if name in sys.modules]
    return [status, out.getvalue(), err.getvalue(), heavy]


if __name__ == "__main__":
    json.dump([run(*command) for command in json.load(sys.stdin)], sys.stdout)
