"""Run one row of a suite at one seed, stage by stage; and many rows, some at a time.

Every stage is a `cotune` command in its own process, watched through its run folder.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml

from cotune.config.resuming import recorded_config
from cotune.config.run_file import RunConfig, dump_config
from cotune.errors import ConfigError, CotuneError
from cotune.experiments.compare.stages import Finished, SuiteRow
from cotune.experiments.evaluate.quadrants import Quadrants, read_quadrants, relative
from cotune.run.json_files import read_jsonl, write_atomic
from cotune.run.run_dir import RunDir
from cotune.utils.field_yaml import FieldDumper
from cotune.utils.text import flat, named, one_line

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_FAILURES = (CotuneError, OSError, KeyError, ValueError)


class State(StrEnum):
    """The state of a cell."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Command:
    """A `cotune` command that a cell needs next.

    Attributes:
        name: what it does: the name of a stage, or "quadrants".
        words: the arguments after `cotune`.
        config: the run file of the stage that it works on.
    """

    name: str
    words: Sequence[str]
    config: RunConfig


class Cell:
    """One row at one seed.

    Attributes:
        problem: why it failed.
        finished: its finished stages, as found in their folders.
        gpu: the only GPU that its processes see; None for all.
        command: what runs now, or ran last; None before the first.
    """

    def __init__(self, row: SuiteRow) -> None:
        self.row = row
        self.state = State.WAITING
        self.problem = ""
        self.finished: list[Finished] = []
        self.gpu: str | None = None
        self.command: Command | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return f"{self.row.entry.key}, seed {self.row.seed}"

    @property
    def stage(self) -> int:
        """The index of the stage that runs now or next; the number of stages if all are finished."""
        return len(self.finished)

    @property
    def _folder(self) -> Path:
        return self.row.stage_folder(self.stage)

    def look(self) -> None:
        """Take over the stages that are finished in the folder; start nothing."""
        try:
            if self._next_command() is None:
                self.state = State.DONE
        except _FAILURES as error:
            self.fail(error)

    def proceed(self) -> None:
        """Check the process, if there is one; start what is missing next."""
        self.state = State.RUNNING
        status = 0
        ended = ""
        if self._process is not None and self.command is not None:
            running = self._process.poll()
            if running is None:
                return
            status = running
            ended = self.command.name
            self._process = None
        try:
            command = None if status else self._next_command()
            if status or (command is not None and command.name == ended):
                raise ConfigError(self._last_words(ended, status))
            if command is None:
                self.state = State.DONE
            else:
                self._start(command)
        except _FAILURES as error:  # in this cell's folder: the others continue
            self.fail(error)

    def fail(self, error: Exception) -> None:
        self.state = State.FAILED
        self.problem = one_line(str(error)) if isinstance(error, CotuneError) else named(error)

    def stop(self) -> None:
        """End the process, if there is one; its run can be resumed."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        if self.state == State.RUNNING:
            self.state = State.WAITING

    def progress(self) -> tuple[int, float | None]:
        """Return the current stage's last step, and the mean reward of the last three."""
        if self.stage == len(self.row.method.stages):
            return 0, None
        rows = read_jsonl(self._folder / "metrics.jsonl")
        rewards = [row["reward_mean"] for row in rows[-3:] if row.get("reward_mean") is not None]
        reward = sum(rewards) / len(rewards) if rewards else None
        return int(rows[-1]["step"]) if rows else 0, reward

    @property
    def standing(self) -> str:
        """Why there is no result yet, in a few words: "begun, stage train", "failed: …", "not begun"."""
        if self.state == State.FAILED:
            return f"failed: {self.problem}"
        stages = self.row.method.stages
        if self.stage == len(stages):
            return "without its quadrants"
        if self.state == State.WAITING and not self.finished and not RunDir.is_run(self._folder):
            return "not begun"
        return "begun" + f", stage {stages[self.stage].name}" * (len(stages) > 1)

    def quadrants(self) -> Quadrants | None:
        """Return the quadrants of the last stage; None if they do not match the suite file."""
        last = self.finished[-1]
        first = self.row.stage_folder(0)
        quadrants = read_quadrants(last.folder)
        since = "" if first == last.folder else relative(first, last.folder)
        expected = (self.row.suite.quadrant_samples, "test", since)
        if quadrants is None or (quadrants.samples, quadrants.split, quadrants.since) != expected:
            return None
        return quadrants if len(quadrants.questions) == last.figures.get("em_n") else None

    def _next_command(self) -> Command | None:
        """Take over what is finished, and return what is due; None if nothing is missing.

        Raises:
            ConfigError: a folder holds a run of another configuration.
        """
        row = self.row
        config = row.planned[-1]
        for index in range(self.stage, len(row.method.stages)):
            stage = row.method.stages[index]
            config = row.config(index, self.finished)
            folder = self._folder
            if not RunDir.is_run(folder):
                return Command(stage.name, ["train", f"{folder}.yaml", "--quiet"], config)
            if problem := other_settings(folder, config):
                raise ConfigError(problem)
            finished = Finished.read(folder)
            if finished is None:
                # The suite is the user's own, so its code is trusted.
                return Command(stage.name, ["resume", str(folder), "--trust", "--quiet"], config)
            self.finished.append(finished)
        if not row.suite.quadrant_samples or self.quadrants() is not None:
            return None
        first = row.stage_folder(0)
        last_folder = self.finished[-1].folder
        words = ["evaluate", str(last_folder), "--trust", "--quadrants"]
        words += ["--samples", str(row.suite.quadrant_samples)]
        return Command(
            "quadrants", words + ["--since", str(first)] * (first != last_folder), config
        )

    def _start(self, command: Command) -> None:
        if command.words[0] == "train":
            shutil.rmtree(self._folder, ignore_errors=True)
            raw = dump_config(command.config)
            text = yaml.dump(raw, Dumper=FieldDumper, sort_keys=False, allow_unicode=True)
            self.row.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(Path(command.words[1]), text)
        self.command = command
        log = self.row.folder / f"{command.name}.log"
        self._process = start(command.words, log, command.config.threads, self.gpu)

    def _last_words(self, name: str, status: int) -> str:
        """Return how a process ended, with the last line that it printed."""
        log = self.row.folder / f"{name}.log"
        text = log.read_text("utf-8", errors="replace") if log.is_file() else ""
        lines = text.strip().splitlines() or ["nothing was printed; is the disk full?"]
        return f"stage {name}, status {status}: {lines[-1].strip()} (see {log})"


def cells_of(rows: Iterable[SuiteRow]) -> list[Cell]:
    """Return the cells of some rows, with what is finished in their folders.

    Raises:
        ConfigError: a folder holds a run with other settings, or cannot be read.
    """
    cells = [Cell(row) for row in rows]
    for cell in cells:
        cell.look()
        if cell.state == State.FAILED:
            raise ConfigError(cell.problem)
    return cells


def other_settings(folder: Path, config: RunConfig) -> str:
    """Say which setting of a run folder is not a run file's; "" if none. `threads` may differ."""
    # Read with this version, so that new fields have their defaults.
    recorded = dump_config(recorded_config(RunDir.open(folder)))
    old, new = (
        {key: repr(value) for key, value in flat(raw).items()}
        for raw in (recorded, dump_config(config))
    )
    differing = sorted(key for key, _ in old.items() ^ new.items() if key != "threads")
    if not differing:
        return ""
    return (
        f"{folder} holds a run with another value of {differing[0]}; restore the suite file, "
        "give it another output, or remove the folder"
    )


def start(
    words: Sequence[str], log: Path, threads: int | None = None, gpu: str | None = None
) -> subprocess.Popen[bytes]:
    """Start `cotune` in a process that the kernel, on Linux, ends if this process is killed.

    Args:
        words: the arguments after `cotune`.
        log: the file for its output; replaced.
        threads: CPU threads; None for as many as there are cores.
        gpu: the only one that it sees; None for all.
    """
    variables = {"OMP_NUM_THREADS": str(threads or os.cpu_count() or 1)}
    if gpu is not None:
        variables["CUDA_VISIBLE_DEVICES"] = gpu
    preexec: Callable[[], None] | None = None
    if sys.platform.startswith("linux"):
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        preexec = lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # noqa: E731
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "cotune", *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **variables},
            preexec_fn=preexec,
        )


def run_cells(
    cells: Sequence[Cell],
    at_once: int,
    watch: Callable[[Sequence[Cell]], None],
    every: float = 1.0,
) -> None:
    """Run cells, `at_once` at a time and in order.

    A cell that fails does not stop the others. If CUDA_VISIBLE_DEVICES lists several GPUs, each cell sees
    one, that with the fewest cells.

    Args:
        watch: called with all cells whenever some may have changed.
        every: seconds between checks of the processes.
    """
    listed = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()]
    if all(cell.state in (State.DONE, State.FAILED) for cell in cells):
        watch(cells)
    try:
        while unfinished := [c for c in cells if c.state in (State.WAITING, State.RUNNING)]:
            # Running cells first, so that they keep their places.
            unfinished.sort(key=lambda cell: cell.state == State.WAITING)
            for cell in unfinished[:at_once]:
                if len(listed) > 1 and cell.state == State.WAITING:
                    busy = [other.gpu for other in cells if other.state == State.RUNNING]
                    cell.gpu = min(listed, key=busy.count)
                cell.proceed()
            watch(cells)
            if any(cell.state == State.RUNNING for cell in cells):
                time.sleep(every)
    finally:
        for cell in cells:
            cell.stop()
