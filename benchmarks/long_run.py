"""Measure whether a long run stays as cheap as it began: CPU seconds, memory, files and report.

    python benchmarks/long_run.py --steps 1000
    python benchmarks/long_run.py --steps 1000 --method inspo

Trains the bundled policy of `arithmetic` on tiny batches, so that the fixed cost of a step counts as much
as possible; INSPO evolves every five steps. Compares the first tenth of the steps with the last one,
prints the memory that is left once the C library has given back what is free (`malloc_trim`), and lists the
largest files of the run folder. Then times writing the report and, if Chromium is installed, opening it, in
CPU seconds beyond those of an empty page. Linux only.
"""

import argparse
import ctypes
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import torch
from rich.console import Console

from cotune.cli.library_settings import quiet_libraries
from cotune.cli.train import conclude
from cotune.config.run_file import RunConfig, dump_config, parse_config
from cotune.engines.preflight import Preflight
from cotune.engines.trl.grpo import train
from cotune.engines.trl.run_file_setup import prepare
from cotune.experiments.report import write_report
from cotune.run.journal import RunJournal
from cotune.run.run_dir import RunDir

METHODS = {
    "static": {"kind": "static"},
    "inspo": {
        "kind": "inspo",
        "prune_every": 5,
        "evolve_every": 5,
        "evolve_until": 1_000_000,
        "verification_tasks": 4,
        "verification_rounds": 1,
    },
}


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class ClockedJournal(RunJournal):
    """Note the CPU seconds and the resident memory of this process at each step's metrics.

    Attributes:
        marks: by step: CPU seconds, and MiB before memory is trimmed.
        trimmed: MiB after `malloc_trim`, at the end of each tenth of the steps.
    """

    def __init__(self, run: RunDir, steps: int) -> None:
        super().__init__(run, Console(quiet=True), steps, trajectories_every=10)
        self.marks: list[tuple[float, float]] = []
        self.trimmed: list[float] = []
        self._tenth = steps // 10

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        super().metrics(step, values)
        self.marks.append((time.process_time(), resident()))
        if step % self._tenth == 0:
            ctypes.CDLL("libc.so.6").malloc_trim(0)
            self.trimmed.append(resident())


def run_file(method: str, steps: int, folder: Path) -> RunConfig:
    return parse_config(
        {
            "name": f"long-{method}",
            "output": str(folder),
            "policy": {"path": "bundled:arithmetic"},
            "environment": {"kind": "arithmetic", "train": 40, "validation": 8, "test": 8},
            "limits": {
                "turns": 1,
                "turn_tokens": 32,
                "observation_tokens": 1,
                "trajectory_tokens": 34,
                "prompt_tokens": 448,
            },
            "strategy": METHODS[method],
            "training": {
                "steps": steps,
                "questions_per_step": 2,
                "group_size": 2,
                "mini_batches": 1,
                "micro_batch_size": 4,
                "learning_rate": 1e-6,
                "schedule": "constant",
                "warmup": 0,
                "kl": 0,
                "save_every": max(1, steps // 10),
            },
            "evaluation": {"every": max(1, steps // 10)},
        },
        "benchmarks/long_run.py",
    )


def files_of(folder: Path) -> dict[str, int]:
    """Return the bytes of a folder's entries, largest first; a folder in it counts as one entry."""
    sizes = {
        path.name: sum(p.stat().st_size for p in (path, *path.rglob("*")) if p.is_file())
        for path in folder.iterdir()
    }
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def opening(page: Path) -> float:
    """Return the CPU seconds in which headless Chromium opens a page and prints its DOM."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()],
        check=True,
        capture_output=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def show_steps(journal: ClockedJournal, tenth: int) -> None:
    """Compare the steps of a run's beginning, without the first ten, with those of its end."""
    first, last = journal.marks[10 : 11 + tenth], journal.marks[-1 - tenth :]
    for what, part in (("first", first), ("last", last)):
        seconds = (part[-1][0] - part[0][0]) / tenth
        median = statistics.median(b[0] - a[0] for a, b in pairwise(part))
        print(
            f"{what} {tenth} steps: {1000 * seconds:.1f} CPU ms a step, median {1000 * median:.1f}; "
            f"{part[-1][1]:.0f} MiB at the end",
            flush=True,
        )
    print("trimmed, by tenth:", ", ".join(f"{m:.0f}" for m in journal.trimmed), "MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--method", choices=METHODS, default="static")
    parser.add_argument("--output", type=Path, help="Where to keep the run folder.")
    args = parser.parse_args()
    if args.steps < 10:
        parser.error(
            f"--steps is {args.steps}; expected at least 10: memory is compared over tenths"
        )
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        config = run_file(args.method, args.steps, args.output or Path(name) / "run")
        quiet_libraries(config)
        run = RunDir.create(config.output, dump_config(config))
        journal = ClockedJournal(run, args.steps)
        setup = prepare(Preflight(config, new=False).require(), run.checkpoints_path)
        outcome = train(config, run, journal, setup)
        conclude(config, run, journal, outcome, setup.environment, Console(quiet=True))
        show_steps(journal, args.steps // 10)
        begun = time.process_time()
        report = write_report(run.path)
        print(f"writing the report: {time.process_time() - begun:.2f} CPU s")
        for file, size in files_of(run.path).items():
            print(f"{size / 2**10:10.0f} KiB  {file}")
        if shutil.which("chromium"):
            empty = Path(name) / "empty.html"
            empty.write_text("<!doctype html><title>empty</title>", encoding="utf-8")
            print(f"opening the report: {opening(report) - opening(empty):.2f} CPU s")


if __name__ == "__main__":
    main()
