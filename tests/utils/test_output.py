"""Output that fails: a console that lacks characters or is lost, and files, from an errno or from a library's text."""

import errno
import os
import pty
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from cotune.utils.output import file_failure

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


def system(number: int, *names: str) -> OSError:
    return OSError(number, os.strerror(number), names[0], None, *names[1:])


def caused() -> Exception:
    error = RuntimeError("generating the data set failed")
    error.__cause__ = system(errno.EIO, "a")
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (system(errno.ENOSPC, "a"), "a: No space left on device; make room"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "a file in out: Disk quota exceeded; make room"),
        (system(errno.ENOTEMPTY, "a", "b"), "a -> b: Directory not empty; check the folder, its disk and the right"),
        (system(errno.ETIMEDOUT, "a"), "a: Connection timed out; check the folder"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "a file in out: Broken pipe; check"),
        (Exception("No space left on device (os error 28)"), "Exception: No space left on device (os error 28); make room"),
        (SafetensorError("Error: I/O error: Stale file handle (os error 116)"), "SafetensorError: Error: I/O error"),
        (RuntimeError("[enforce fail] . unexpected pos 64 vs 0"), "; make room"),
        (RuntimeError("open file failed with strerror: Permission denied"), "; check the folder"),
        (shutil.Error([("a", "b", "[Errno 5] Input/output error: 'b'")]), "[Errno 5] Input/output error"),
        (caused(), "a: Input/output error"),
    ],
)  # fmt: skip
def test_a_failed_operation_names_file_reason_and_fix(error: Exception, said: str) -> None:
    text = file_failure(error, Path("out"))
    assert said in text
    assert "\n" not in text


@pytest.mark.parametrize(
    "error",
    [
        KeyError("a"),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        Exception("[Errno 111] Connection refused"),
        TimeoutError("timed out"),
        socket.gaierror(-2, "Name or service not known"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("cannot compile: cc: No such file or directory"),
    ],
)
def test_other_errors_are_none(error: Exception) -> None:
    assert file_failure(error) == ""


def test_what_torch_says_is_known(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as nowhere:
        torch.save({}, tmp_path / "nowhere" / "a.pt")
    with pytest.raises(RuntimeError) as full:
        torch.save({"a": torch.zeros(9)}, "/dev/full")
    for raised in (nowhere, full):
        assert file_failure(raised.value), raised.value
