"""The console may lack characters, or be lost."""

import os
import pty
import subprocess
import sys

import pytest

PRINTING = """
import sys
from rich.console import Console
from cotune.utils.output import output_may_be_lost
console = Console()
with output_may_be_lost():
    for _ in range(300):
        print("é" * 100)
        console.print("step")
        sys.stdout.flush()
print("after", flush=True)
print("end", file=sys.stderr)
"""


@pytest.mark.parametrize("lost", ["a pipe", "a terminal", "a full disk"])
def test_a_lost_console_ends_nothing(lost: str) -> None:
    if lost == "a full disk":
        output = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, output = os.pipe() if lost == "a pipe" else pty.openpty()
        os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", PRINTING],
        stdout=output, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(output)
    assert (done.returncode, done.stderr) == (0, "end\n")


TEXT = "агент é ✓ \ud83d"
WRITING = f"""
import sys
from rich.console import Console
from cotune.utils.output import accept_any_text
accept_any_text()
print({TEXT!r})
Console().print({TEXT!r})
"""


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_no_text_fails_for_the_encoding(encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITING],
        capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(encoding).count("\\ud83d") == 2
