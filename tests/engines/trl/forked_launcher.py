"""torchrun and `accelerate launch` whose processes are forked instead of started.

Only interpreters that start, and what they import, are left out: what the launcher reads, the
variables that it sets, the rendezvous, and what it does about a failure are its own.

python -m tests.engines.trl.forked_launcher torch.distributed.run|accelerate.commands.launch …
"""

import runpy
import subprocess
import sys

from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

from tests.forked import ForkedPopen, run_module

ACCELERATE = "accelerate.commands.launch"


def launched(launcher: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run a launcher in a process of its own."""
    return run_module("tests.engines.trl.forked_launcher", launcher, *arguments)


def _main() -> None:
    subprocess_handler.Popen = ForkedPopen  # type: ignore[assignment,misc]
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
