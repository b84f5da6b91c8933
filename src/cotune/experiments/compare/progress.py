"""suite.json: what an unfinished suite is reported from, besides its run folders."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cotune.errors import ConfigError
from cotune.experiments.compare.cells import Cell, State
from cotune.experiments.compare.stages import Setting, rows_of
from cotune.experiments.compare.suite_file import SuiteConfig
from cotune.experiments.compare.suite_summary import PROGRESS, read_suite
from cotune.run.json_files import Row, write_json_atomic
from cotune.run.locks import is_locked, locked

_LOCK = "suite.lock"
_VERSION = 2
# Fields of run files, `llm:` among them, stay in the run folders.
_RUN_FIELDS = {"base", "output", "set", "by_strategy", "prompt_stage"}


class Progress:
    """Write suite.json whenever the state of a cell changes."""

    def __init__(self, suite: SuiteConfig, setting: Setting) -> None:
        exclude: Any = {**dict.fromkeys(_RUN_FIELDS, True), "methods": {"__all__": {"set": True}}}
        self._head = {
            "schema_version": _VERSION,
            "suite": suite.model_dump(mode="json", exclude=exclude),
            "setting": asdict(setting),
        }
        self._folder = suite.output
        self._written: list[Row] | None = None

    def __call__(self, cells: Sequence[Cell]) -> None:
        rows: list[Row] = [
            {
                "row": cell.row.entry.key,
                "seed": cell.row.seed,
                "state": cell.state,
                "problem": cell.problem,
            }
            for cell in cells
        ]
        if rows != self._written:
            write_json_atomic(self._folder / PROGRESS, {**self._head, "cells": rows})
            self._written = rows


def summary_so_far(folder: Path) -> Row:
    """Return a suite's summary over the runs that are finished, also while they run; write nothing.

    Raises:
        ConfigError: the folder is not a suite's, or one of its files cannot be read.
    """
    from cotune.experiments.compare.results import summarise

    path = folder / PROGRESS
    if not path.is_file():
        return read_suite(folder)
    try:
        content = json.loads(path.read_bytes())
        if content["schema_version"] != _VERSION:
            raise ValueError("of another version")
        suite = SuiteConfig.model_validate({**content["suite"], "base": {}, "output": str(folder)})
        states = {
            (str(cell["row"]), int(cell["seed"])): (State(cell["state"]), str(cell["problem"]))
            for cell in content["cells"]
        }
        setting = Setting(**content["setting"])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConfigError(
            f"{path} is not what cotune compare writes; remove it, and run cotune compare again"
        ) from None
    cells = [Cell(row) for row in rows_of(suite, {})]
    for cell in cells:
        state, problem = states.get((cell.row.entry.key, cell.row.seed), (State.WAITING, ""))
        cell.read()
        if state == State.FAILED:
            cell.fail(problem)
        elif state == State.RUNNING and cell.state == State.WAITING and is_worked_on(folder):
            cell.state = State.RUNNING
    return summarise(suite, cells, setting)


def is_worked_on(folder: Path) -> bool:
    """Return whether a `cotune compare` holds the folder; see `is_locked`."""
    return is_locked(folder / _LOCK)


def held(folder: Path) -> AbstractContextManager[None]:
    """Lock the folder against a second process, and against runs that a killed one left behind."""
    busy = f"output: {folder} is being worked on by another cotune compare; wait for it, or stop it"
    return locked(folder / _LOCK, busy)
