"""Links, free space, and failed file operations in one line."""

import errno
import os
import re
import shutil
from pathlib import Path

from cotune.utils.text import one_line


def link_or_copy(source: str, target: str) -> None:
    """Link a file to a second name; copy it if the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def file_failure(error: BaseException, folder: Path | None = None) -> str:
    """Return which file failed, why, and what helps, in one line; "" if the error is of another kind.

    Rust's, torch's and SQLite's errors have neither errno nor file name, so that their text decides.

    Args:
        error: also the errors that caused it are looked at.
        folder: what to name if the error names no file.
    """
    cause: BaseException | None = error
    while cause is not None:
        if (number := _errno_of(cause)) is not None:
            break
        cause = cause.__cause__
    else:
        return ""
    fix = _FIXES.get(number, "check the folder and its disk")
    names = [str(n) for n in (_get(cause, "filename"), _get(cause, "filename2")) if n is not None]
    place = " -> ".join(names) or (f"a file in {folder}" if folder else "a file or the output")
    reason = _get(cause, "strerror") or f"{type(cause).__name__}: {one_line(str(cause))[:300]}"
    return f"{place}: {reason}; {fix}"


_FIXES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit of open files (ulimit -n)"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "give this user the right to it"),
}
_OF_FILES = {
    *_FIXES, errno.EIO, errno.ESTALE, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT,
    errno.ENAMETOOLONG, errno.ELOOP, errno.EFBIG, errno.EBUSY, errno.ETXTBSY, errno.ENXIO, errno.ENODEV,
    errno.EXDEV, errno.EMLINK, errno.ENOLCK, errno.EINTR, errno.ETIMEDOUT,
}  # fmt: skip
# In a text these may be of a connection, a compiler or a device, whose traceback is needed.
_AMBIGUOUS = {
    errno.ETIMEDOUT, errno.EINTR, errno.EBUSY, errno.ENODEV, errno.ENXIO, errno.ENOENT, errno.EEXIST,
}  # fmt: skip
_PHRASES = {
    **{os.strerror(number): number for number in _OF_FILES - _AMBIGUOUS},
    "PytorchStreamWriter failed writing": errno.ENOSPC,
    "unexpected pos": errno.ENOSPC,  # torch.save, after an earlier error
    "disk is full": errno.ENOSPC,
    "Parent directory": errno.ENOENT,  # torch.save
    "iostream error": errno.EIO,
    "disk I/O error": errno.EIO,
    "unable to open database file": errno.EACCES,
    "readonly database": errno.EROFS,
    "database is locked": errno.EBUSY,
}
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def _errno_of(error: BaseException) -> int | None:
    """Return the errno of an error that comes from a file operation; None for any other."""
    if isinstance(error, OSError) and error.errno is not None:
        of_a_file = error.errno in _OF_FILES or error.filename is not None
        return error.errno if of_a_file else None
    text = one_line(str(error))
    if match := _OS_ERROR.search(text):
        return int(match[1]) if int(match[1]) in _OF_FILES else None
    return next((number for phrase, number in _PHRASES.items() if phrase in text), None)


def _get(error: BaseException, name: str) -> object:
    return getattr(error, name, None)
