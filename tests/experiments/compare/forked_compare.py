"""`cotune compare` whose runs are forked from it instead of started as fresh interpreters.

python -m tests.experiments.compare.forked_compare FILE [RUN]

With RUN, a run's folder, that run kills the command once it has written down two steps.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cotune.cli.app import main
from cotune.engines.trl.trl_joint import CheckpointCallback
from cotune.experiments import chains
from tests.forked import ForkedPopen


def _kill_the_command_at_step_2(run: Path) -> None:
    """Have the run end the process that started it, and wait: the system ends it in turn."""
    log = CheckpointCallback.on_log
    command = os.getpid()

    def killing(self: Any, args: Any, state: Any, *extra: Any, **events: Any) -> None:
        log(self, args, state, *extra, **events)
        if state.global_step == 2 and run in Path(args.output_dir).parents:
            os.kill(command, signal.SIGKILL)
            time.sleep(60)

    CheckpointCallback.on_log = killing  # type: ignore[method-assign]


if __name__ == "__main__":
    file, *killed_by = sys.argv[1:]
    for folder in killed_by:
        _kill_the_command_at_step_2(Path(folder))
    chains.time = SimpleNamespace(sleep=lambda _: time.sleep(0.02), monotonic=time.monotonic)
    chains.subprocess = SimpleNamespace(
        Popen=ForkedPopen, STDOUT=subprocess.STDOUT, DEVNULL=subprocess.DEVNULL
    )
    sys.argv = ["cotune", "compare", file]
    main()
