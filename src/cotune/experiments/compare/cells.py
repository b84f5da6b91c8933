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
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import yaml

from cotune.config.resuming import recorded_config
from cotune.config.run_file import RunConfig, dump_config
from cotune.errors import ConfigError, CotuneError
from cotune.experiments.compare.stages import Finished, SuiteRow
from cotune.experiments.evaluate.quadrants import Quadrants, read_quadrants, relative
from cotune.run.full_disk import nearly_full
from cotune.run.journal import describe_event
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
        finished: its finished stages.
        gpu: the only GPU that its processes see; None for all.
    """

    def __init__(self, row: SuiteRow) -> None:
        self.row, self.state, self.problem = row, State.WAITING, ""
        self.finished: list[Finished] = []
        self.gpu: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._since = 0.0
        self._config: RunConfig | None = None
        self._source: Finished | None = None
        self._merging = self._scoring = False
        self._seen: tuple[object, tuple[int, int, float | None, str]] = (None, (0, 0, None, ""))

    @property
    def name(self) -> str:
        return f"{self.row.entry.key}, seed {self.row.seed}"

    @property
    def stage(self) -> int:
        """The index of the stage that runs now or next."""
        return len(self.finished)

    @property
    def stage_name(self) -> str:
        if self._scoring:
            return "quadrants"
        stages = self.row.method.stages
        return stages[min(self.stage, len(stages) - 1)].name

    def look(self, others: Mapping[str, Finished]) -> None:
        """Take over the stages that are finished in the folder; start nothing."""
        try:
            while self.stage < len(self.row.method.stages) and self._take_over(others):
                pass
            if self.stage == len(self.row.method.stages) and not self._lacks_quadrants():
                self.state = State.DONE
        except _FAILURES as error:
            self.fail(in_one_line(error))

    def proceed(self, others: Mapping[str, Finished], scored: Sequence[Path] = ()) -> None:
        """Check the process, if there is one; start the next stage that is not finished.

        Args:
            others: the last stages of the rows that this one needs.
            scored: run folders of the same seed that have quadrants.
        """
        self.state = State.RUNNING
        try:
            if self._process is not None:
                if (status := self._process.poll()) is None:
                    return
                self._process = None
                self._ended(status)
            while self.state == State.RUNNING and self._process is None:
                if self.stage < len(self.row.method.stages):
                    if not self._take_over(others):
                        self._start()
                elif self._lacks_quadrants():
                    self._score(scored)
                else:
                    self.state = State.DONE
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

    def progress(self) -> tuple[int, int, float | None, str]:
        """Return the current stage's last step, its number of steps, the mean reward of the last
        three steps, and the last event as rich markup.
        """
        if self._config is None or self._scoring:
            return 0, 0, None, ""
        files = [self._folder / name for name in ("metrics.jsonl", "events.jsonl")]
        state = (self._folder, *((f.stat().st_size if f.is_file() else 0) for f in files))
        if state != self._seen[0]:  # asked every second; the logs may be long
            self._seen = (state, self._read_progress(self._config.training.steps, *files))
        return self._seen[1]

    @staticmethod
    def _read_progress(
        steps: int, metrics: Path, events: Path
    ) -> tuple[int, int, float | None, str]:
        rows = read_jsonl(metrics)
        rewards = [row["reward_mean"] for row in rows[-3:] if row.get("reward_mean") is not None]
        newest = reversed(read_jsonl(events))
        last = next(filter(None, (describe_event(event["kind"], event) for event in newest)), "")
        return (
            int(rows[-1]["step"]) if rows else 0,
            steps,
            sum(rewards) / len(rewards) if rewards else None,
            last,
        )

    @property
    def seconds(self) -> int:
        """The time since the process of the current stage was started."""
        return int(time.monotonic() - self._since)

    @property
    def standing(self) -> str:
        """The state in a few words: "running, step 12 of 40", "failed: …", "not begun"."""
        if self.state == State.DONE:
            return "finished"
        if self.state == State.FAILED:
            return f"failed: {self.problem or 'no reason recorded'}"
        running, stages = self.state == State.RUNNING, self.row.method.stages
        if self.stage == len(stages):
            return "scoring quadrants" if self._scoring else "finished, not read yet"
        reached = _reached(self._folder)
        if not (running or reached or self.finished):
            return "not begun"
        stage = f"stage {stages[self.stage].name}" if len(stages) > 1 else ""
        if not running and not reached:
            stage = f"before {stage}"
        return ", ".join(filter(None, ("running" if running else "cut off", stage, reached)))

    def quadrants(self) -> Quadrants | None:
        """Return the quadrants of the last stage; None if they do not match the suite file."""
        last, first = self.finished[-1], self.row.beginning
        found = read_quadrants(last.folder)
        since = "" if first == last.folder else relative(first, last.folder)
        wanted = (self.row.suite.quadrant_samples, "test", since)
        if found is None or (found.samples, found.split, found.since) != wanted:
            return None
        return found if len(found.questions) == last.figures.get("em_n") else None

    @property
    def _folder(self) -> Path:
        return self.row.stage_folder(self.stage)

    @property
    def _version_file(self) -> Path:
        """The file with the version of the stage whose policy the current one began from."""
        return self._folder.with_name(self._folder.name + ".source.sha256")

    @property
    def _began_from(self) -> str | None:
        """The version in that file; the source's own if there is no file, as in older suites."""
        try:
            return self._version_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return self._source and self._source.version

    @property
    def _log(self) -> Path:
        folder = self.row.folder / "quadrants" if self._scoring else self._folder
        return folder.with_name(folder.name + ".log")

    def _lacks_quadrants(self) -> bool:
        return self.row.has_quadrants and self.quadrants() is None

    def _ended(self, status: int) -> None:
        """Take over what an ended process left: a finished stage, a merged policy, or a failure."""
        if self._merging:
            self._merging, well = False, status == 0
            if well:
                self.finished[-1].note_merged()
        elif self._scoring:
            well = status == 0 and not self._lacks_quadrants()
        else:
            found = Finished.read(self._folder) if status == 0 else None
            well = found is not None
            self.finished += [found] if found else []
        if not well:
            text = self._log.read_text("utf-8", errors="replace") if self._log.is_file() else ""
            # On a full disk not even the log is written.
            full = (
                "No space left on device" if nearly_full(self.row.folder) else "nothing was printed"
            )
            lines = text.strip().splitlines() or [full]
            told = f"{lines[-1].strip()} (see {self._log})"
            self.fail(f"stage {self.stage_name}, status {status}: {told}")
        self._scoring = False

    def _take_over(self, others: Mapping[str, Finished]) -> bool:
        """Take over the next stage if it is finished; return whether it is.

        Raises:
            ConfigError: the folder holds a run of another configuration, or from another policy.
        """
        config = self._config = self.row.config(self.stage, self.finished, others)
        self._source = self.row.policy_source(self.stage, self.finished, others)
        folder = self._folder
        if not RunDir.is_run(folder):
            return False
        if told := other_settings(folder, config):
            raise ConfigError(told)
        if self._source is not None and self._began_from != self._source.version:
            raise ConfigError(
                f"{folder} holds a run from another policy than {self._source.folder} has now; remove "
                "the folder"
            )
        if (found := Finished.read(folder)) is None:
            return False
        self.finished.append(found)
        return True

    def _start(self) -> None:
        """Start the next stage, resume it, or merge the adapter that it starts from."""
        assert self._config is not None
        folder, stage = self._folder, self.row.method.stages[self.stage]
        source = self.finished[-1] if stage.policy == "before" and self.finished else None
        if source is not None and source.merged is not None and not source.is_merged:
            self._merging = True
            for left in source.folder.glob(".merged.*.new"):  # left by a killed process
                shutil.rmtree(left, ignore_errors=True)
            shutil.rmtree(source.merged, ignore_errors=True)  # of an earlier policy
            words = ("export", str(source.folder), "--trust", "--format", "merged")
            words = (*words, "--output", str(source.merged))
        elif RunDir.is_run(folder) and stage.command == ("train",):
            words = ("resume", str(folder), "--trust", "--quiet")  # the suite is the user's own
        else:
            # A baseline that was stopped starts over.
            shutil.rmtree(folder, ignore_errors=True)
            file = folder.with_name(folder.name + ".yaml")
            file.parent.mkdir(parents=True, exist_ok=True)
            text = yaml.dump(
                dump_config(self._config), Dumper=FieldDumper, sort_keys=False, allow_unicode=True
            )
            write_atomic(file, text)
            if self._source is not None:
                write_atomic(self._version_file, self._source.version)
            words = (*stage.command, str(file), "--quiet")
        self._process = start(words, self._log, self._config.threads, self.gpu)
        self._since = time.monotonic()

    def _score(self, scored: Sequence[Path]) -> None:
        """Start the evaluation of the last stage's quadrants, compared with the start of the first stage."""
        last, self._scoring = self.finished[-1], True
        words = ("evaluate", str(last.folder), "--trust", "--quadrants")
        words += ("--samples", str(self.row.suite.quadrant_samples))
        if self.row.beginning != last.folder:
            words += ("--since", str(self.row.beginning))
        for folder in scored:
            words += ("--initial-of", str(folder))
        threads = self._config and self._config.threads
        self._process = start(words, self._log, threads, self.gpu)
        self._since = time.monotonic()


def check_settings(rows: Iterable[SuiteRow]) -> None:
    """Raise ConfigError if the folder of a first stage holds a run with other settings.

    A folder that cannot be read is left to its cell, which fails alone.
    """
    for row in rows:
        folder = row.stage_folder(0)
        if row.needs or not RunDir.is_run(folder):
            continue
        try:
            told = other_settings(folder, row.planned[0])
        except _FAILURES:
            continue
        if told:
            raise ConfigError(told)


def other_settings(folder: Path, config: RunConfig) -> str:
    """Say which setting of a run folder is not a run file's; "" if none. `threads` may differ."""
    # Read with this version, so that new fields have their defaults.
    was = dump_config(recorded_config(RunDir.open(folder)))
    old, new = (
        {key: repr(v) for key, v in flat(raw).items()} for raw in (was, dump_config(config))
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


def _reached(folder: Path) -> str:
    """Say how far a run came: "step 12 of 40"; "" if there is none or it cannot be read."""
    if not RunDir.is_run(folder):
        return ""
    try:
        run = RunDir.open(folder)
        rows, training = run.read_metrics(), run.read_config().get("training") or {}
    except CotuneError:
        return ""
    of = f" of {training['steps']}" if training.get("steps") else ""
    return f"step {rows[-1]['step'] if rows else 0}{of}"


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
    own = {"OMP_NUM_THREADS": str(threads or os.cpu_count() or 1)}
    if gpu is not None:
        own["CUDA_VISIBLE_DEVICES"] = gpu
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
            env={**os.environ, **own},
            preexec_fn=preexec,
        )


def run_cells(
    cells: Sequence[Cell],
    at_once: int,
    watch: Callable[[Sequence[Cell]], None],
    every: float = 1.0,
) -> None:
    """Run cells, `at_once` at a time and in order, each after those that it needs.

    A cell that fails does not stop the others. First, stages that are finished in the folders are
    taken over. If CUDA_VISIBLE_DEVICES lists several GPUs, each cell sees one, that with the fewest cells.

    Args:
        watch: called with all cells whenever some may have changed.
        every: seconds between checks of the processes.
    """
    by_key = {(cell.row.entry.key, cell.row.seed): cell for cell in cells}
    needed = {cell: [by_key[name, cell.row.seed] for name in cell.row.needs] for cell in cells}

    def others(cell: Cell) -> dict[str, Finished] | None:
        """Return the last stages of the rows that a cell needs; None before all are done."""
        if any(other.state != State.DONE for other in needed[cell]):
            return None
        return {other.row.entry.key: other.finished[-1] for other in needed[cell]}

    def scored(cell: Cell) -> list[Path]:
        """Return the run folders of a cell's seed that have quadrants."""
        return [
            other.finished[-1].folder
            for other in cells
            if other.state == State.DONE
            and other.row.has_quadrants
            and other.row.seed == cell.row.seed
        ]

    for cell in sorted(cells, key=lambda cell: bool(needed[cell])):
        if (found := others(cell)) is not None:
            cell.look(found)
    if all(cell.state in (State.DONE, State.FAILED) for cell in cells):
        watch(cells)
    gpus = listed_gpus()
    try:
        while open_cells := [c for c in cells if c.state in (State.WAITING, State.RUNNING)]:
            slots = at_once
            for cell in sorted(open_cells, key=lambda cell: cell.state == State.WAITING):
                if slots == 0 and cell.state == State.WAITING:
                    break
                if failed := [other for other in needed[cell] if other.state == State.FAILED]:
                    cell.fail(f"needs {failed[0].name}, which failed")
                elif (found := others(cell)) is not None:
                    if gpus and cell.state == State.WAITING:
                        busy = [c.gpu for c in cells if c.state == State.RUNNING]
                        cell.gpu = min(gpus, key=busy.count)
                    cell.proceed(found, scored(cell))
                    slots -= cell.state == State.RUNNING
            watch(cells)
            if any(cell.state == State.RUNNING for cell in cells):
                time.sleep(every)
    finally:
        for cell in cells:
            cell.stop()
