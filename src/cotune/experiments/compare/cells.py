"""One row of a suite at one seed, run stage by stage; and many of them, some at a time."""

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from cotune.config import RunConfig, dump_config, parse_config
from cotune.contracts import ConfigError, CotuneError
from cotune.experiments.compare.stages import Finished, Row
from cotune.experiments.processes import end, last_line, start
from cotune.json_files import read_jsonl, write_atomic
from cotune.run_dir import RunDir


class State(StrEnum):
    """Where a cell stands."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Cell:
    """One row at one seed.

    Attributes:
        row: what it runs.
        state: where it stands.
        problem: why it failed; "" else.
        finished: its stages that are, in order.
    """

    def __init__(self, row: Row) -> None:
        self.row, self.state, self.problem = row, State.WAITING, ""
        self.finished: list[Finished] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._config: RunConfig | None = None

    @property
    def name(self) -> str:
        return f"{self.row.entry.key}, seed {self.row.seed}"

    @property
    def stage(self) -> int:
        return len(self.finished)

    def proceed(self, others: Mapping[str, Finished]) -> None:
        """Looks after the process, if there is one; starts the next stage that is not finished."""
        self.state = State.RUNNING
        try:
            if self._process is not None:
                if (status := self._process.poll()) is None:
                    return
                self._process = None
                self._take(self._folder, status)
            while self.state == State.RUNNING and self._process is None:
                if self.stage == len(self.row.method.stages):
                    self.state = State.DONE
                    return
                self._begin(others)
        except (CotuneError, OSError, KeyError, ValueError) as error:
            # Of one cell, whose folder was tampered with or cannot be written: its own affair.
            kind = "" if isinstance(error, CotuneError) else f"{type(error).__name__}: "
            self.fail(kind + " ".join(str(error).split()))

    def fail(self, problem: str) -> None:
        self.state, self.problem = State.FAILED, problem

    def stop(self) -> None:
        """Ends the process, if there is one; its run can be gone on with."""
        end(self._process)

    def step(self) -> tuple[int, int, float | None]:
        """Of the stage at hand: the last step, all of them, and the mean reward of late."""
        if self._config is None:
            return 0, 0, None
        rows = read_jsonl(self._folder / "metrics.jsonl")
        rewards = [row["reward_mean"] for row in rows[-3:] if row.get("reward_mean") is not None]
        mean = sum(rewards) / len(rewards) if rewards else None
        return int(rows[-1]["step"]) if rows else 0, self._config.training.steps, mean

    @property
    def _folder(self) -> Path:
        return self.row.stage_folder(self.stage)

    @property
    def _log(self) -> Path:
        return self._folder.with_name(self._folder.name + ".log")

    def _take(self, folder: Path, status: int) -> None:
        found = Finished.read(folder) if status == 0 else None
        if found is None:
            stage = self.row.method.stages[self.stage].name
            self.fail(f"stage {stage}, status {status}: {last_line(self._log)} (see {self._log})")
        else:
            self.finished.append(found)

    def _begin(self, others: Mapping[str, Finished]) -> None:
        """Takes a finished stage as it is, goes on with one that was cut off, starts a new one."""
        self._config = self.row.config(self.stage, self.finished, others)
        folder = self._folder
        if RunDir.is_run(folder):
            self._check_same(folder, self._config)
            if (found := Finished.read(folder)) is not None:
                self.finished.append(found)
                return
        file = folder.with_name(folder.name + ".yaml")
        command = self.row.command(self.stage)
        if RunDir.is_run(folder) and command == ("train",):
            words = ("resume", str(folder), "--quiet")
        else:
            # What a baseline had answered before it was stopped is answered again.
            shutil.rmtree(folder, ignore_errors=True)
            file.parent.mkdir(parents=True, exist_ok=True)
            text = yaml.safe_dump(dump_config(self._config), sort_keys=False, allow_unicode=True)
            write_atomic(file, text)
            words = (*command, str(file), "--quiet")
        self._process = start(words, self._log, self._config.threads)

    @staticmethod
    def _check_same(folder: Path, config: RunConfig) -> None:
        # Read as this version reads it: fields that are new to it have their defaults.
        was = dump_config(parse_config(RunDir.open(folder).read_config(), str(folder)))
        now = dump_config(config)
        if differing := sorted(_fields(was).items() ^ _fields(now).items()):
            raise ConfigError(
                f"{folder} holds a run with another {differing[0][0]}; restore the suite file, "
                "give it another output, or remove the folder"
            )


def _fields(raw: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Plain data by dotted paths; values as text."""
    found: dict[str, str] = {}
    for key, value in raw.items():
        if isinstance(value, Mapping) and value:
            found |= _fields(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = repr(value)
    return found


def run_cells(
    cells: Sequence[Cell],
    at_once: int,
    watch: Callable[[Sequence[Cell]], None],
    every: float = 1.0,
) -> None:
    """Runs cells, `at_once` at a time, in order; those that need others after them.

    A cell that fails leaves the others alone. What is finished in its folder is not run again.
    """
    by_key = {(cell.row.entry.key, cell.row.seed): cell for cell in cells}
    try:
        while open_cells := [c for c in cells if c.state in (State.WAITING, State.RUNNING)]:
            slots = at_once
            for cell in sorted(open_cells, key=lambda cell: cell.state == State.WAITING):
                if slots == 0 and cell.state == State.WAITING:
                    break
                needed = [by_key[name, cell.row.seed] for name in cell.row.needs]
                if failed := [other for other in needed if other.state == State.FAILED]:
                    cell.fail(f"needs {failed[0].name}, which failed")
                    continue
                if any(other.state != State.DONE for other in needed):
                    continue
                others = {other.row.entry.key: other.finished[-1] for other in needed}
                cell.proceed(others)
                slots -= cell.state == State.RUNNING
            watch(cells)
            if any(cell.state == State.RUNNING for cell in cells):
                time.sleep(every)
    finally:
        for cell in cells:
            cell.stop()
