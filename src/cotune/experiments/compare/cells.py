"""One row of a suite at one seed, run stage by stage; and many of them, some at a time."""

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from cotune.config.run_file import RunConfig, dump_config, parse_config
from cotune.errors import ConfigError, CotuneError
from cotune.experiments.compare.processes import end, last_line, start
from cotune.experiments.compare.stages import Finished, Row
from cotune.run.json_files import read_jsonl, write_atomic
from cotune.run.run_dir import RunDir

_OWN = (CotuneError, OSError, KeyError, ValueError)


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
        self._merging = False

    @property
    def name(self) -> str:
        return f"{self.row.entry.key}, seed {self.row.seed}"

    @property
    def stage(self) -> int:
        return len(self.finished)

    def look(self, others: Mapping[str, Finished]) -> None:
        """Takes the stages that are finished as they are; starts nothing."""
        try:
            while self.stage < len(self.row.method.stages) and self._taken(others):
                pass
            if self.stage == len(self.row.method.stages):
                self.state = State.DONE
        except _OWN as error:
            self._broke(error)

    def proceed(self, others: Mapping[str, Finished]) -> None:
        """Looks after the process, if there is one; starts the next stage that is not finished."""
        self.state = State.RUNNING
        try:
            if self._process is not None:
                if (status := self._process.poll()) is None:
                    return
                self._process = None
                self._ended(status)
            while self.state == State.RUNNING and self._process is None:
                if self.stage == len(self.row.method.stages):
                    self.state = State.DONE
                    return
                self._begin(others)
        except _OWN as error:
            self._broke(error)

    def fail(self, problem: str) -> None:
        self.state, self.problem = State.FAILED, problem

    def stop(self) -> None:
        """Ends the process, if there is one; its run can be gone on with."""
        end(self._process)
        if self.state == State.RUNNING:
            self.state = State.WAITING

    def step(self) -> tuple[int, int, float | None]:
        """Of the stage at hand: the last step, all of them, and the mean reward of late."""
        if self._config is None:
            return 0, 0, None
        rows = read_jsonl(self._folder / "metrics.jsonl")
        rewards = [row["reward_mean"] for row in rows[-3:] if row.get("reward_mean") is not None]
        mean = sum(rewards) / len(rewards) if rewards else None
        return int(rows[-1]["step"]) if rows else 0, self._config.training.steps, mean

    @property
    def standing(self) -> str:
        """Where it stands in a few words: "running, step 12 of 40", "failed: …", "not begun"."""
        if self.state == State.DONE:
            return "finished"
        if self.state == State.FAILED:
            return f"failed: {self.problem or 'no reason recorded'}"
        running, stages = self.state == State.RUNNING, self.row.method.stages
        if self.stage == len(stages):
            return "about to be taken as it is"
        reached = _reached(self._folder)
        if not (running or reached or self.finished):
            return "not begun"
        stage = f"stage {stages[self.stage].name}" if len(stages) > 1 else ""
        if not running and not reached:
            stage = f"before {stage}"
        return ", ".join(filter(None, ("running" if running else "cut off", stage, reached)))

    @property
    def _folder(self) -> Path:
        return self.row.stage_folder(self.stage)

    @property
    def _log(self) -> Path:
        return self._folder.with_name(self._folder.name + ".log")

    def _ended(self, status: int) -> None:
        """What a process leaves: a finished stage, a merged policy, or a failure."""
        if self._merging:
            self._merging, well = False, status == 0
            if well:
                self.finished[-1].note_merged()
        else:
            found = Finished.read(self._folder) if status == 0 else None
            well = found is not None
            self.finished += [found] if found else []
        if not well:
            stage = self.row.method.stages[self.stage].name
            self.fail(f"stage {stage}, status {status}: {last_line(self._log)} (see {self._log})")

    def _broke(self, error: Exception) -> None:
        # Of one cell, whose folder was tampered with or cannot be written: its own affair.
        kind = "" if isinstance(error, CotuneError) else f"{type(error).__name__}: "
        self.fail(kind + " ".join(str(error).split()))

    def _taken(self, others: Mapping[str, Finished]) -> bool:
        """Whether the next stage is finished, and so taken as it is."""
        self._config = self.row.config(self.stage, self.finished, others)
        folder = self._folder
        if not RunDir.is_run(folder):
            return False
        self._check_same(folder, self._config)
        if (found := Finished.read(folder)) is None:
            return False
        self.finished.append(found)
        return True

    def _begin(self, others: Mapping[str, Finished]) -> None:
        """Takes a finished stage as it is, goes on with one that was cut off, starts a new one."""
        if self._taken(others):
            return
        assert self._config is not None
        folder = self._folder
        if (source := self._unmerged) is not None:
            words = ("export", str(source.folder), "--format", "merged")
            assert source.merged is not None
            self._merging = True
            for left in source.folder.glob(".merged.*.new"):  # by one that was killed
                shutil.rmtree(left, ignore_errors=True)
            shutil.rmtree(source.merged, ignore_errors=True)  # of the policy before
            words = (*words, "--output", str(source.merged))
            self._process = start(words, self._log, self._config.threads)
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

    @property
    def _unmerged(self) -> Finished | None:
        """The stage whose adapter the next one needs in whole weights, where that is yet to do."""
        if self.row.method.stages[self.stage].policy != "before" or not self.finished:
            return None
        last = self.finished[-1]
        return None if last.merged is None or last.is_merged else last

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


def _reached(folder: Path) -> str:
    """How far a run came: "step 12 of 40"; "" for one that is not there or cannot be read."""
    if not RunDir.is_run(folder):
        return ""
    try:
        run = RunDir.open(folder)
        rows, training = run.read_metrics(), run.read_config().get("training") or {}
    except CotuneError:
        return ""
    of = f" of {training['steps']}" if training.get("steps") else ""
    return f"step {rows[-1]['step'] if rows else 0}{of}"


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

    A cell that fails leaves the others alone. What is finished in its folder is not run again; it is
    looked for in all of them first.
    """
    by_key = {(cell.row.entry.key, cell.row.seed): cell for cell in cells}
    for cell in sorted(cells, key=lambda cell: bool(cell.row.needs)):
        needed = [by_key[name, cell.row.seed] for name in cell.row.needs]
        if all(other.state == State.DONE for other in needed):
            cell.look({other.row.entry.key: other.finished[-1] for other in needed})
    if all(cell.state in (State.DONE, State.FAILED) for cell in cells):
        watch(cells)
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
