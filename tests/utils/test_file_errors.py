"""Files that fail, told from an errno or from a library's text."""

import errno
import os
import shutil
import socket
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from cotune.utils.file_errors import file_failure


def make_os_error(number: int, *names: str) -> OSError:
    return OSError(number, os.strerror(number), names[0], None, *names[1:])


def make_chained_error() -> Exception:
    error = RuntimeError("generating the data set failed")
    error.__cause__ = make_os_error(errno.EIO, "a")
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (make_os_error(errno.ENOSPC, "a"), "a: No space left on device; make room"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "a file in out: Disk quota exceeded; make room"),
        (make_os_error(errno.ENOTEMPTY, "a", "b"), "a -> b: Directory not empty; check the folder, its disk and the right"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "a file in out: Broken pipe; check"),
        (SafetensorError("Error: I/O error: No space left on device (os error 28)"), "(os error 28); make room"),
        (RuntimeError("[enforce fail] . unexpected pos 64 vs 0"), "; make room"),
        (shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'")]), "; make room"),
        (make_chained_error(), "a: Input/output error"),
    ],
)  # fmt: skip
def test_a_failed_operation_names_file_reason_and_fix(error: Exception, message: str) -> None:
    text = file_failure(error, Path("out"))
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize(
    "error",
    [
        KeyError("a"),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        TimeoutError("timed out"),
        socket.gaierror(-2, "Name or service not known"),
        RuntimeError("CUDA error: out of memory"),
    ],
)
def test_other_errors_are_none(error: Exception) -> None:
    assert file_failure(error) == ""


def test_a_full_disk_as_torch_says_it() -> None:
    with pytest.raises(RuntimeError) as full:
        torch.save({"a": torch.zeros(9)}, "/dev/full")
    assert file_failure(full.value).endswith("; make room")
