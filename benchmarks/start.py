"""Measure how soon commands answer: CPU seconds to the first line, and of training to the first rollout.

    python benchmarks/start.py

Starts each command in its own process, reads what it prints, and stops it at the expected line. For comparison, it
also imports TRL's trainer alone. Linux only.
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
IMPORT = ["-c", "from trl import GRPOTrainer; print(GRPOTrainer)"]


def cpu_seconds(words: list[str], until: str) -> float:
    """Return the CPU seconds of Python with these arguments when it prints a line that contains `until`."""
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if until in line:
                stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii")
                process.kill()
                # user and system time, the 14th and 15th field; the 2nd, in brackets, may have spaces
                user, system = stat.rpartition(")")[2].split()[11:13]
                return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    raise RuntimeError(f"{words} ended without a line that contains {until!r}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for i, (what, (words, until)) in enumerate(COMMANDS.items()):
            own = ["--set", f"output={folder}/{i}"] if words[-1] == RUN else []
            seconds = cpu_seconds(["-m", "cotune", *words, *own], until)
            print(f"{what}: {seconds:.2f} CPU s", flush=True)
    print(f"for comparison, {IMPORT[1]}: {cpu_seconds(IMPORT, ''):.2f} CPU s")


if __name__ == "__main__":
    main()
