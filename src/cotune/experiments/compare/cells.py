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
from cotune.utils.text import flat, one_line

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_FAILURES = (CotuneError, OSError, KeyError, ValueError)


class State(StrEnum):
    """The state of a cell."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Cell:
    """One row at one seed.

    Attributes:
        problem: why it failed.
        finished: its finished stages, as found in their folders.
        gpu: the only GPU that its processes see; None for all.
        working: the name of what its process does: a stage, "merge" or "quadrants"; "" without one.
        steps: the steps of the stage that runs.
    """

    def __init__(self, row: SuiteRow) -> None:
        self.row, self.state, self.problem, self.working = row, State.WAITING, "", ""
        self.steps = 0
        self.finished: list[Finished] = []
        self.gpu: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log = row.folder / "none"
        self._complete: Callable[[], bool] = lambda: True
        self._progress: tuple[object, tuple[int, float | None]] = (None, (0, None))

    @property
    def name(self) -> str:
        return f"{self.row.entry.key}, seed {self.row.seed}"

    @property
    def stage(self) -> int:
        """The index of the stage that runs now or next."""
        return len(self.finished)

    def look(self) -> None:
        """Take over the stages that are finished in the folder; start nothing."""
        try:
            while self.stage < len(self.row.method.stages) and self._take_over():
                pass
            if self.stage == len(self.row.method.stages) and not self._lacks_quadrants():
                self.state = State.DONE
        except _FAILURES as error:
            self.fail(in_one_line(error))

    def proceed(self) -> None:
        """Check the process, if there is one; start what is missing next."""
        self.state = State.RUNNING
        try:
            if self._process is not None:
                status = self._process.poll()
                if status is None:
                    return
                self._process = None
                if status != 0 or not self._complete():
                    self._fail_by_log(status)
                    return
            self.look()
            if self.state == State.RUNNING:
                self._start()
        except _FAILURES as error:  # in this cell's folder: the others continue
            self.fail(in_one_line(error))

    def fail(self, problem: str) -> None:
        self.state, self.problem = State.FAILED, problem

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
        file = self._folder / "metrics.jsonl"
        size = file.stat().st_size if file.is_file() else 0
        if (file, size) != self._progress[0]:  # asked every second; the log may be long
            rows = read_jsonl(file)
            rewards = [r["reward_mean"] for r in rows[-3:] if r.get("reward_mean") is not None]
            reward = sum(rewards) / len(rewards) if rewards else None
            self._progress = ((file, size), (int(rows[-1]["step"]) if rows else 0, reward))
        return self._progress[1]

    @property
    def standing(self) -> str:
        """The state in a few words: "begun, stage train", "failed: …", "not begun"."""
        if self.state == State.DONE:
            return "finished"
        if self.state == State.FAILED:
            return f"failed: {self.problem or 'no reason recorded'}"
        stages = self.row.method.stages
        if self.stage == len(stages):
            return "without its quadrants"
        if self.state == State.WAITING and not self.finished and not RunDir.is_run(self._folder):
            return "not begun"
        return "begun" + f", stage {stages[self.stage].name}" * (len(stages) > 1)

    def quadrants(self) -> Quadrants | None:
        """Return the quadrants of the last stage; None if they do not match the suite file."""
        last, first = self.finished[-1], self.row.stage_folder(0)
        quadrants = read_quadrants(last.folder)
        since = "" if first == last.folder else relative(first, last.folder)
        expected = (self.row.suite.quadrant_samples, "test", since)
        if quadrants is None or (quadrants.samples, quadrants.split, quadrants.since) != expected:
            return None
        return quadrants if len(quadrants.questions) == last.figures.get("em_n") else None

    @property
    def _folder(self) -> Path:
        return self.row.stage_folder(self.stage)

    def _lacks_quadrants(self) -> bool:
        return self.row.suite.quadrant_samples > 0 and self.quadrants() is None

    def _take_over(self) -> bool:
        """Take over the next stage if it is finished; return whether it is.

        Raises:
            ConfigError: the folder holds a run of another configuration.
        """
        if not RunDir.is_run(self._folder):
            return False
        if problem := other_settings(self._folder, self.row.config(self.stage, self.finished)):
            raise ConfigError(problem)
        if (finished := Finished.read(self._folder)) is None:
            return False
        self.finished.append(finished)
        return True

    def _start(self) -> None:
        """Start the next stage, resume it, merge the adapter that it starts from, or score the quadrants."""
        last = self.finished[-1] if self.finished else None
        if self.stage == len(self.row.method.stages):
            assert last is not None
            words = ["evaluate", str(last.folder), "--trust", "--quadrants"]
            words += ["--samples", str(self.row.suite.quadrant_samples)]
            if (first := self.row.stage_folder(0)) != last.folder:
                words += ["--since", str(first)]
            self._run("quadrants", words, lambda: not self._lacks_quadrants())
            return
        stage = self.row.method.stages[self.stage]
        folder = self._folder
        if stage.continues_policy and last is not None and last.lacks_merged:
            words = ["export", str(last.folder), "--trust", "--format", "merged"]
            self._run("merge", [*words, "--output", str(last.policy)], last.policy.is_dir)
            return
        config = self.row.config(self.stage, self.finished)
        self.steps = config.training.steps
        if RunDir.is_run(folder):
            words = ["resume", str(folder), "--trust", "--quiet"]  # the suite is the user's own
        else:
            shutil.rmtree(folder, ignore_errors=True)
            file = folder.with_name(folder.name + ".yaml")
            file.parent.mkdir(parents=True, exist_ok=True)
            text = yaml.dump(
                dump_config(config), Dumper=FieldDumper, sort_keys=False, allow_unicode=True
            )
            write_atomic(file, text)
            words = ["train", str(file), "--quiet"]
        self._run(stage.name, words, lambda: Finished.read(folder) is not None)

    def _run(self, working: str, words: Sequence[str], complete: Callable[[], bool]) -> None:
        """Start a process.

        Args:
            complete: whether what it should write is there.
        """
        self.working, self._complete = working, complete
        self._log = self.row.folder / f"{working}.log"
        threads = self.row.planned[min(self.stage, len(self.row.planned) - 1)].threads
        self._process = start(words, self._log, threads, self.gpu)

    def _fail_by_log(self, status: int) -> None:
        """Fail with the last line that the process printed."""
        text = self._log.read_text("utf-8", errors="replace") if self._log.is_file() else ""
        lines = text.strip().splitlines() or ["nothing was printed; is the disk full?"]
        self.fail(f"stage {self.working}, status {status}: {lines[-1].strip()} (see {self._log})")


def check_settings(rows: Iterable[SuiteRow]) -> None:
    """Raise ConfigError if the folder of a first stage holds a run with other settings.

    A folder that cannot be read is left to its cell, which fails alone.
    """
    for row in rows:
        folder = row.stage_folder(0)
        if not RunDir.is_run(folder):
            continue
        try:
            problem = other_settings(folder, row.planned[0])
        except _FAILURES:
            continue
        if problem:
            raise ConfigError(problem)


def other_settings(folder: Path, config: RunConfig) -> str:
    """Say which setting of a run folder is not a run file's; "" if none. `threads` may differ."""
    # Read with this version, so that new fields have their defaults.
    was = dump_config(recorded_config(RunDir.open(folder)))
    old, new = (
        {key: repr(value) for key, value in flat(raw).items()} for raw in (was, dump_config(config))
    )
    differing = sorted(key for key, _ in old.items() ^ new.items() if key != "threads")
    if not differing:
        return ""
    return (
        f"{folder} holds a run with another value of {differing[0]}; restore the suite file, "
        "give it another output, or remove the folder"
    )


def in_one_line(error: Exception) -> str:
    """Return an error's text in one line, with its type unless it is one of cotune's own."""
    text = str(error) if isinstance(error, CotuneError) else f"{type(error).__name__}: {error}"
    return one_line(text)


def listed_gpus() -> list[str]:
    """Return the GPUs of CUDA_VISIBLE_DEVICES, if it lists several."""
    listed = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()]
    return listed if len(listed) > 1 else []


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
    """Run cells, `at_once` at a time and in order, after taking over what is finished in their folders.

    A cell that fails does not stop the others. If CUDA_VISIBLE_DEVICES lists several GPUs, each cell sees
    one, that with the fewest cells.

    Args:
        watch: called with all cells whenever some may have changed.
        every: seconds between checks of the processes.
    """
    for cell in cells:
        cell.look()
    gpus = listed_gpus()
    if all(cell.state in (State.DONE, State.FAILED) for cell in cells):
        watch(cells)
    try:
        while unfinished := [c for c in cells if c.state in (State.WAITING, State.RUNNING)]:
            # Running cells first, so that they keep their places.
            unfinished.sort(key=lambda cell: cell.state == State.WAITING)
            for cell in unfinished[:at_once]:
                if gpus and cell.state == State.WAITING:
                    busy = [other.gpu for other in cells if other.state == State.RUNNING]
                    cell.gpu = min(gpus, key=busy.count)
                cell.proceed()
            watch(cells)
            if any(cell.state == State.RUNNING for cell in cells):
                time.sleep(every)
    finally:
        for cell in cells:
            cell.stop()
