"""A run folder as pandas data frames. docs/reference/run-folder.md documents what the files hold.

The types: "string", "Int64" and "boolean" are pandas' own, which know missing values; "float64"
has NaN for them; "object" holds lists and dicts as the files have them.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotune.errors import ConfigError
from cotune.run.json_files import Row
from cotune.run.ledger import SCHEMA_VERSION, CostRow
from cotune.run.lineage import instruction_rows
from cotune.run.run_dir import RunDir
from cotune.types import Purpose

if TYPE_CHECKING:
    import pandas as pd

TIME = "datetime64[ms, UTC]"
Columns = Mapping[str, str]
"""By column its type."""

_LINE: Columns = {"time": TIME, "attempt": "int64", "step": "int64"}

METRICS: Columns = {
    **_LINE,
    "optimizer_step": "Int64",
    "reward_mean": "float64",
    "zero_advantage_share": "float64",
    "turns_mean": "float64",
    "prompt_tokens_mean": "float64",
    "response_tokens_mean": "float64",
    "generated_tokens": "float64",
    "completion_tokens_mean": "float64",
    "answered_share": "float64",
    "turn_error_share": "float64",
}
"""Columns that every frame of metrics has; those of a method and of the trainer follow."""

_HINT_TEXT = {"text": "string", "parent": "string"}
EVENTS: Mapping[str, Columns] = {
    "run_started": {"config": "string", "strategy": "string"},
    "saved": {},
    "run_finished": {"instruction_id": "string", "instruction": "string"},
    "resumed": {"from_step": "Int64", "changed": "object"},
    "cut_back": {},
    "evaluated": {
        "split": "string",
        "when": "string",
        "prompt": "string",
        "instruction_id": "string",
        "trained": "Int64",
        "em": "float64",
        "n": "Int64",
        "measure": "string",
        "by_stratum": "object",
    },
    "sampled": {"rollouts": "Int64", "of": "Int64", "reward_mean": "float64"},
    "training_rows": {
        "data": "string",
        **dict.fromkeys(
            ("rows", "questions", "tokens", "steps", "rollouts", "succeeded", "left_out"), "Int64"
        ),
        "reward_mean": "float64",
    },
    "instruction_born": {
        "id": "string",
        "text": "string",
        "parent": "string",
        "origin": "string",
        "born": "Int64",
        "critique": "string",
        "score": "float64",
        "parent_score": "float64",
    },
    "instruction_rejected": {
        "reason": "string",
        "text": "string",
        "parent": "string",
        "origin": "string",
        "score": "float64",
        "parent_score": "float64",
    },
    "instruction_pruned": {"id": "string", "weight": "float64", "cause": "string"},
    "population": {"members": "object"},
    "evolution": {
        "parents": "object",
        "rounds": "Int64",
        "proposed": "Int64",
        "verified": "Int64",
        "accepted": "Int64",
        "population": "Int64",
    },
    "proposal_failed": {"reason": "string"},
    "best_instruction": {
        "id": "string",
        "weight": "float64",
        "observed_steps": "Int64",
        "observed_rollouts": "Int64",
        "runner_up": "string",
        "too_close_to_call": "boolean",
    },
    "gepa_phase": dict.fromkeys(("dev", "train", "budget"), "Int64"),
    "gepa_progress": {
        **dict.fromkeys(("evaluations", "budget", "instructions"), "Int64"),
        "best_dev_score": "float64",
    },
    "gepa_phase_ended": {
        **dict.fromkeys(
            ("evaluations", "budget", "asked", "proposed", "lawful", "accepted"), "Int64"
        ),
        **dict.fromkeys(("initial_dev_score", "best_dev_score"), "float64"),
    },
    "hard_samples": dict.fromkeys(
        ("epoch", "seen", "hard", "newly_hard", "graduated", "solved_by_hint"), "Int64"
    ),
    "hint_phase": {
        **dict.fromkeys(("phase", "hard", "dev", "train", "budget"), "Int64"),
        "reflection": "string",
    },
    "hint_progress": {
        **dict.fromkeys(("evaluations", "budget", "hints"), "Int64"),
        "best_mean_dev_score": "float64",
    },
    "hint_accepted": {**_HINT_TEXT, "mean_dev_score": "float64"},
    "hint_rejected": {"reason": "string", **_HINT_TEXT},
    "hint_phase_ended": {
        **dict.fromkeys(
            (
                "phase",
                "evaluations",
                "budget",
                "asked",
                "proposed",
                "lawful",
                "accepted",
                "covering",
            ),
            "Int64",
        ),
        "covering_texts": "object",
        "solved_without": "float64",
        "solved_by_cover": "float64",
        "solved": "object",
    },
    "context_ratios": {"log10_from": "float64", "log10_to": "float64", "counts": "object"},
    "notice": {"text": "string"},
}
"""Fields of each kind of event, besides `time`, `attempt`, `step` and `kind`."""

INSTRUCTIONS: Columns = {
    "id": "string",
    "parent": "string",
    "origin": "string",
    "born": "int64",
    "weight": "float64",
    "observed_rollouts": "int64",
    "score": "float64",
    "parent_score": "float64",
    "pruned": "Int64",
    "best": "boolean",
    "critique": "string",
    "text": "string",
}

TRAJECTORIES: Columns = {
    "step": "int64",
    "attempt": "int64",
    "purpose": "string",
    "task_id": "string",
    "question": "string",
    "answers": "object",
    "stratum": "string",
    "instruction": "string",
    "group": "int64",
    "sampled_instruction": "string",
    "sampled_hint": "string",
    "trained_instruction": "string",
    "trained_hint": "string",
    "turns": "object",
    "stop": "string",
    "answer": "string",
    "reward": "float64",
    "reward_parts": "object",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
    "generated_tokens": "int64",
    "prompt_ids": "object",
    "trained_prompt_ids": "object",
    "completion_ids": "object",
    "mask": "object",
}

COSTS: Columns = {
    "attempt": "int64",
    "step": "int64",
    "committed": "boolean",
    "kind": "string",
    "rollouts": "int64",
    "generated_tokens": "int64",
    "model": "string",
    "state": "string",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
    "estimated": "boolean",
    "money": "float64",
    "error": "string",
    "seconds": "float64",
}


class RunReader(RunDir):
    """A run folder to read, also as data frames. A run without a file has a frame without rows."""

    def metrics_frame(self) -> "pd.DataFrame":
        """metrics.jsonl, one row an optimizer step: `METRICS`, then all other numbers as float64."""
        rows = self.read_metrics()
        others = dict.fromkeys((key for row in rows for key in row), "float64")
        return _frame(rows, {**METRICS, **{k: v for k, v in others.items() if k not in METRICS}})

    def events_frame(self, kind: str | None = None) -> "pd.DataFrame":
        """events.jsonl, one row an event.

        Args:
            kind: events of this kind alone, with a column for each of its fields (`EVENTS`). With
                None all events, whose fields are dicts in the column `fields`.
        """
        rows = self.read_events()
        head: Columns = {**_LINE, "kind": "string"}
        if kind is None:
            told = [{**row, "fields": _without(row, head)} for row in rows]
            return _frame(told, {**head, "fields": "object"})
        chosen = [row for row in rows if row["kind"] == kind]
        known = EVENTS.get(kind, {})
        others = {key: "object" for row in chosen for key in _without(row, {**head, **known})}
        return _frame(chosen, {**head, **known, **others})

    def instructions_frame(self) -> "pd.DataFrame":
        """All instructions that ever lived, by birth: `cotune.run.lineage.InstructionRow`."""
        rows = instruction_rows(self)
        return _frame([{name: getattr(row, name) for name in INSTRUCTIONS} for row in rows],
                      INSTRUCTIONS)  # fmt: skip

    def trajectories_frame(
        self, step: int | None = None, purpose: Purpose | None = None
    ) -> "pd.DataFrame":
        """The stored rollouts, one row a rollout: `TRAJECTORIES`.

        Args:
            step: of this step alone.
            purpose: of this purpose alone, by the name in the file's name; "evaluate" stands for
                all evaluations ("evaluate_before", "evaluate_during", …).
        """
        rows: list[Row] = []
        for found_step, found in self.trajectory_files():
            if step in (None, found_step) and _is_of(found, purpose):
                rows += self.read_trajectories(found_step, found)
        return _frame(map(_flat, rows), TRAJECTORIES)

    def costs_frame(self) -> "pd.DataFrame":
        """The view `costs` of ledger.sqlite, in order: `cotune.run.ledger.CostRow`.

        Raises:
            ConfigError: the file is no ledger, or one of another schema version.
        """
        return _frame(cost_rows(self.ledger_path), COSTS)


def open_run(path: str | Path) -> RunReader:
    """A run folder, finished or not, to read: its `read_…` methods and `…_frame` methods.

    Raises:
        ConfigError: no run folder, or one of another schema_version.
    """
    return RunReader.open(path)


def cost_rows(path: Path) -> list[Row]:
    """The rows of a ledger's view `costs`; [] where there is no ledger. Never writes.

    Raises:
        ConfigError: the file is no ledger, or one of another schema version.
    """
    if not path.is_file():
        return []
    names = [field.name for field in fields(CostRow)]
    address = path.resolve().as_uri()
    try:
        return _select(f"{address}?mode=ro", names, path)
    except sqlite3.OperationalError:
        # In a folder that cannot be written SQLite cannot share the file with a writer.
        try:
            return _select(f"{address}?immutable=1", names, path)
        except sqlite3.Error as error:
            raise ConfigError(f"{path}: cannot be read as a ledger: {error}") from error
    except sqlite3.Error as error:
        raise ConfigError(f"{path}: expected a cotune ledger (SQLite), got: {error}") from error


def _select(address: str, names: Sequence[str], path: Path) -> list[Row]:
    with closing(sqlite3.connect(address, uri=True, timeout=30.0)) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA_VERSION:
            raise ConfigError(
                f"{path}: ledger has schema version {version}, this cotune reads {SCHEMA_VERSION}: "
                "read it with the cotune that wrote it"
            )
        found = database.execute(f"SELECT {', '.join(names)} FROM costs ORDER BY id").fetchall()
    return [dict(zip(names, row, strict=True)) for row in found]


def _is_of(found: Purpose, purpose: Purpose | None) -> bool:
    return purpose is None or found == purpose or found.startswith(f"{purpose}_")


def _without(row: Row, columns: Iterable[str]) -> Row:
    taken = set(columns)
    return {key: value for key, value in row.items() if key not in taken}


def _flat(row: Row) -> Row:
    """A stored rollout with the columns of `TRAJECTORIES`."""
    task, sampled, trained = row["task"], row["sampled"], row["trained"] or {}
    return {
        **row,
        "task_id": task["id"],
        "question": task["question"],
        "answers": task["answers"],
        "stratum": task["stratum"],
        "sampled_instruction": sampled["instruction"],
        "sampled_hint": sampled["hint"],
        "trained_instruction": trained.get("instruction"),
        "trained_hint": trained.get("hint"),
    }


def _frame(rows: Iterable[Row], columns: Columns) -> "pd.DataFrame":
    """Rows as a frame of exactly these columns and types; what a row lacks is missing."""
    import pandas as pd

    kept = list(rows)
    return pd.DataFrame(
        {name: _column([row.get(name) for row in kept], dtype) for name, dtype in columns.items()}
    )


def _column(values: list[Any], dtype: str) -> Any:
    import pandas as pd

    if dtype == TIME:
        milliseconds = pd.Series([round(value * 1000) for value in values], dtype="int64")
        return pd.to_datetime(milliseconds, unit="ms", utc=True).astype(TIME)
    if dtype == "boolean":
        values = [None if value is None else bool(value) for value in values]
    return pd.Series(values, dtype=dtype)
