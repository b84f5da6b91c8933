"""Failures of files, told in one line."""

import errno
import re
import shutil
from pathlib import Path

from cotune.utils.text import one_line

# An error of writing names no file. Other errors without one may be of a connection or a device.
_OF_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)
# A full disk, in the words of the system (with safetensors, too) and in torch's.
_FULL = re.compile(
    "No space left|quota exceeded|PytorchStreamWriter failed writing|unexpected pos|iostream error"
)


def file_failure(error: BaseException, folder: Path | None = None) -> str:
    """Return in one line which file failed, why, and what helps; "" if neither the error nor a cause comes from a file.

    `folder` is named in place of a file that the error does not name.
    """
    cause = error
    while not _is_of_a_file(cause):
        if cause.__cause__ is None:
            return ""
        cause = cause.__cause__
    reason = getattr(cause, "strerror", None)
    reason = reason or f"{type(cause).__name__}: {one_line(str(cause))[:300]}"
    names = [getattr(cause, name, None) for name in ("filename", "filename2")]
    place = " -> ".join(str(name) for name in names if name is not None)
    place = place or (f"a file in {folder}" if folder else "a file or the output")
    is_full = _FULL.search(str(cause))
    fix = "make room" if is_full else "check the folder, its disk and the right to write there"
    return f"{place}: {reason}; {fix}"


def _is_of_a_file(error: BaseException) -> bool:
    if isinstance(error, shutil.Error):
        return True  # it names the files that it could not copy in its text
    if isinstance(error, OSError):
        return error.filename is not None or error.errno in _OF_WRITING
    return _FULL.search(str(error)) is not None
