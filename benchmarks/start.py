"""Measure how soon commands answer: CPU seconds to the first line, and of training to the first rollout.

    python benchmarks/start.py

Starts each command in its own process, reads what it prints, and stops it at the expected line. Linux only.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

RUN = "configs/ladder-inspo.yaml"
COMMANDS = {
    "a run file that does not exist": (["train", "nowhere.yaml"], ""),
    "plan, to the first line": (["plan", RUN], ""),
    "doctor, to the first line": (["doctor"], ""),
    "train, to the first line": (["train", RUN], ""),
    "train, to the first rollout": (["train", RUN], "rollouts 0/"),
}
"""By what is measured: the words of a command, and what the line that ends it contains."""


def cpu_seconds(words: list[str], until: str) -> float:
    """Return the CPU seconds of a command when it prints a line that contains `until`."""
    with subprocess.Popen(
        [sys.executable, "-m", "cotune", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if until in line:
                stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii")
                process.kill()
                # user and system time, the 14th and 15th field; the 2nd, in brackets, may have spaces
                user, system = stat.rpartition(")")[2].split()[11:13]
                return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    raise RuntimeError(f"cotune {' '.join(words)} ended without a line that contains {until!r}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for i, (what, (words, until)) in enumerate(COMMANDS.items()):
            own = ["--set", f"output={folder}/{i}"] if words[-1] == RUN else []
            print(f"{what}: {cpu_seconds([*words, *own], until):.2f} CPU s", flush=True)


if __name__ == "__main__":
    main()
