"""suite.json: the state of a suite's runs, from which an unfinished suite is reported."""

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cotune.errors import ConfigError
from cotune.experiments.compare.cells import Cell, State
from cotune.experiments.compare.stages import Finished, Setting, SuiteRow, rows_of
from cotune.experiments.compare.suite_file import SuiteConfig
from cotune.experiments.compare.suite_summary import PROGRESS, is_suite, read_suite
from cotune.run.json_files import Row, write_json_atomic
from cotune.run.locks import is_locked, locked
from cotune.run.run_dir import read_summary

_LOCK = "suite.lock"
_VERSION = 1
# Fields of run files, `llm:` among them, stay in the run folders.
_RUN_FIELDS = {"base", "output", "set", "by_strategy", "prompt_stage"}


class Progress:
    """Write suite.json whenever the state of a cell changes."""

    def __init__(self, suite: SuiteConfig, setting: Setting) -> None:
        exclude: Any = {**dict.fromkeys(_RUN_FIELDS, True), "methods": {"__all__": {"set": True}}}
        self._suite = suite.model_dump(mode="json", exclude=exclude)
        self._setting, self._folder = setting, suite.output
        self._written: list[Row] | None = None

    def __call__(self, cells: Sequence[Cell]) -> None:
        rows: list[Row] = [
            {
                "method": cell.row.entry.key,
                "seed": cell.row.seed,
                "state": str(cell.state),
                "problem": cell.problem,
            }
            for cell in cells
        ]
        if rows == self._written:
            return
        head = {"schema_version": _VERSION, "updated": round(time.time(), 3)}
        setting = asdict(self._setting)
        found = {**head, "suite": self._suite, "setting": setting, "cells": rows}
        write_json_atomic(self._folder / PROGRESS, found)
        self._written = rows


def summary_so_far(folder: Path) -> Row:
    """Return a suite's summary over the runs that are finished; write nothing.

    If all runs had ended when summary.json was written, and nothing happened since, it is returned;
    otherwise the run folders are read, also while `cotune compare` works on them.

    Raises:
        ConfigError: the folder is not a suite's, or one of its files cannot be read.
    """
    from cotune.experiments.compare.results import summarise

    path = folder / PROGRESS
    if not path.is_file():
        return read_suite(folder)
    try:
        found = json.loads(path.read_bytes())
        if found["schema_version"] != _VERSION:
            raise ValueError("of another version")
        suite = SuiteConfig.model_validate({**found["suite"], "base": {}, "output": str(folder)})
        states = {
            (str(cell["method"]), int(cell["seed"])): (State(cell["state"]), str(cell["problem"]))
            for cell in found["cells"]
        }
        updated, setting = float(found["updated"]), Setting(**found["setting"])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConfigError(
            f"{path} is not what cotune compare writes; remove it, and run cotune compare again"
        ) from None
    working = is_worked_on(folder)
    written = read_summary(folder)
    if written is not None and is_suite(written) and not working:
        ended = all(row["status"] != "unfinished" for row in written["methods"])
        if ended and written["created"] >= updated:
            return written
    cells: list[Cell] = []
    for row in rows_of(suite, {}):
        state, problem = states.get((row.entry.key, row.seed), (State.WAITING, ""))
        cells.append(_cell(row, state, problem, working))
    return summarise(suite, cells, setting)


def _cell(row: SuiteRow, state: State, problem: str, working: bool) -> Cell:
    """Return a cell as it was left, with its finished stages."""
    cell = Cell(row)
    try:
        for index in range(len(row.method.stages)):
            if (found := Finished.read(row.stage_folder(index))) is None:
                break
            cell.finished.append(found)
    except ConfigError as error:
        cell.fail(str(error))
        return cell
    whole = cell.stage == len(row.method.stages)
    if state == State.FAILED:
        cell.fail(problem)
    elif whole and state in (State.DONE, State.RUNNING):
        cell.state = State.DONE
    elif state == State.RUNNING and working:
        cell.state = State.RUNNING
    return cell


def is_worked_on(folder: Path) -> bool:
    """Return whether a `cotune compare` holds the folder; see `is_locked`."""
    return is_locked(folder / _LOCK)


def held(folder: Path) -> AbstractContextManager[None]:
    """Lock the folder against a second process, and against runs that a killed one left behind."""
    busy = f"output: {folder} is being worked on by another cotune compare; wait for it, or stop it"
    return locked(folder / _LOCK, busy)
