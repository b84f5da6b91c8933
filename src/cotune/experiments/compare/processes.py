"""Runs in processes of their own."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def start(words: Sequence[str], log: Path, threads: int | None = None) -> subprocess.Popen[bytes]:
    """Starts `cotune` with some arguments; it ends with this process where the system can see to it.

    Args:
        words: what follows `cotune`.
        log: where its output goes; replaced.
        threads: of its CPU; None is all there are.
    """
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "cotune", *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": str(threads or os.cpu_count() or 1)},
            preexec_fn=_ends_with_parent(),
        )


def last_line(log: Path) -> str:
    """What a process said last."""
    if not log.is_file():
        return "nothing was printed"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "nothing was printed"


def end(process: subprocess.Popen[bytes] | None) -> None:
    """Stops a process, if it runs, and waits for it."""
    if process is not None and process.poll() is None:
        process.terminate()
        process.wait()


def _ends_with_parent() -> Callable[[], None] | None:
    """On Linux, what has the kernel end a child whose parent was killed; None elsewhere."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
