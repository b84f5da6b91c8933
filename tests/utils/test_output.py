"""The console may lack characters."""

import os
import subprocess
import sys

import pytest

TEXT = "агент é ✓ \ud83d"
WRITING = f"""
import sys
from rich.console import Console
from cotune.utils.output import accept_any_text
accept_any_text()
print({TEXT!r})
Console().print({TEXT!r})
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "cp1252", "utf-8"])
def test_no_text_fails_for_the_encoding(encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITING],
        capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(encoding).count("\\ud83d") == 2
