"""Failed file operations in one line."""

import errno
import re
from pathlib import Path

from cotune.utils.text import one_line

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
    """Return which file failed, why, and what helps, in one line; "" if the error is of another kind.

    Args:
        error: also the errors that caused it are looked at.
        folder: what to name if the error names no file.
    """
    cause = error
    while (number := _errno_of(cause)) is None:
        if cause.__cause__ is None:
            return ""
        cause = cause.__cause__
    fix = (
        "make room"
        if number in _FULL
        else "check the folder, its disk and the right to write there"
    )
    names = [str(n) for n in (_get(cause, "filename"), _get(cause, "filename2")) if n is not None]
    place = " -> ".join(names) or (f"a file in {folder}" if folder else "a file or the output")
    reason = _get(cause, "strerror") or f"{type(cause).__name__}: {one_line(str(cause))[:300]}"
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


def _get(error: BaseException, name: str) -> object:
    return getattr(error, name, None)
