"""Output to a console that may show few characters."""

import io
import sys


def accept_any_text() -> None:
    """Let the standard streams escape what their encoding lacks, in place of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
