"""Output to a console that may show few characters, or be lost while a command runs."""

import io
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


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
