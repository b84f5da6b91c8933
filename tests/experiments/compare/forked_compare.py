"""`cotune compare` whose runs are forked from it instead of started as fresh interpreters.

python -m tests.experiments.compare.forked_compare FILE [METRICS]

With METRICS, the command kills itself once that file tells of two steps.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from cotune.cli.app import main
from cotune.experiments.compare import cells
from cotune.run.json_files import read_jsonl
from tests.forked import ForkedPopen


def _look_again(metrics: Path | None) -> None:
    """Stand in for the pause between two looks at the runs."""
    time.sleep(0.02)
    if metrics and any(row["step"] >= 2 for row in read_jsonl(metrics)):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    file, *killed_at = sys.argv[1:]
    path = Path(killed_at[0]) if killed_at else None
    cells.time = SimpleNamespace(sleep=lambda _: _look_again(path), monotonic=time.monotonic)
    cells.subprocess = SimpleNamespace(
        Popen=ForkedPopen, STDOUT=subprocess.STDOUT, DEVNULL=subprocess.DEVNULL
    )
    sys.argv = ["cotune", "compare", file]
    main()
