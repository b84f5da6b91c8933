"""Output that fails: a console that shows few characters or is lost; failures of files, told in one line."""

import errno
import io
import os
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cotune.utils.text import one_line


def accept_any_text() -> None:
    """Let the standard streams escape what their encoding lacks, in place of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def output_may_be_lost() -> Generator[None]:
    """Go on in silence while the block runs if a pipe is closed, a terminal hangs up or a log's disk is full."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_Losable, streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


class _Losable:
    """A stream that is connected to the null device once writing to it fails."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._lose()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._lose()

    def _lose(self) -> None:
        # What the stream still holds goes there, too, as does what other libraries write.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


# ---- files

_FULL = (errno.ENOSPC, errno.EDQUOT)
# Of a file even if the error names none; others may be of a connection or a device.
_OF_FILES = {
    *_FULL, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE,
    errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENAMETOOLONG, errno.EFBIG,
    errno.EPIPE,
}  # fmt: skip
# Rust's errors (safetensors, tokenizers) and shutil's have a number in their text.
_NUMBER = re.compile(r"\(os error (\d+)\)|\[Errno (\d+)\]")
_OF_TORCH = {
    "PytorchStreamWriter failed writing": errno.ENOSPC,
    "unexpected pos": errno.ENOSPC,  # after an earlier error
    "Parent directory": errno.ENOENT,
    "Permission denied": errno.EACCES,
    "iostream error": errno.EIO,
}


def file_failure(error: BaseException, folder: Path | None = None) -> str:
    """Return in one line which file failed, why, and what helps; "" if neither the error nor a cause comes from a file.

    `folder` is named in place of a file that the error does not name.
    """
    cause = error
    while (number := _errno_of(cause)) is None:
        if cause.__cause__ is None:
            return ""
        cause = cause.__cause__
    full = number in _FULL
    fix = "make room" if full else "check the folder, its disk and the right to write there"
    names = [getattr(cause, name, None) for name in ("filename", "filename2")]
    place = " -> ".join(str(name) for name in names if name is not None)
    place = place or (f"a file in {folder}" if folder else "a file or the output")
    reason = getattr(cause, "strerror", "")
    reason = reason or f"{type(cause).__name__}: {one_line(str(cause))[:300]}"
    return f"{place}: {reason}; {fix}"


def _errno_of(error: BaseException) -> int | None:
    """Return the errno of an error that comes from a file operation; None for any other."""
    if isinstance(error, OSError) and error.errno is not None:
        number: int | None = error.errno
        return number if number in _OF_FILES or error.filename is not None else None
    text = str(error)
    number = next((number for phrase, number in _OF_TORCH.items() if phrase in text), None)
    if match := _NUMBER.search(text):
        number = int(match[1] or match[2])
    # Others, such as a refused connection, are none of a file.
    return number if number in _OF_FILES else None
