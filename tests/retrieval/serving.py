"""`cotune serve-retriever` as a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Served:
    """`url` takes queries while the process lives."""

    process: subprocess.Popen[str]
    url: str


def command(corpus: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "cotune", "serve-retriever", "--corpus", str(corpus), *arguments]


@contextmanager
def served(corpus: Path, *arguments: str) -> Iterator[Served]:
    """A server on a free port of loopback; ended, if it still runs, on the way out."""
    process = subprocess.Popen(
        command(corpus, "--port", "0", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if line.startswith("serving "):
                yield Served(process, line.split(" on ")[1].split(";")[0])
                return
        raise AssertionError(process.stderr.read())
    finally:
        process.kill()
        process.communicate()
