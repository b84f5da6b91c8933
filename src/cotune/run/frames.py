"""A run folder as pandas data frames. docs/reference/run-folder.md documents what the files hold.

The types: "string", "Int64" and "boolean" are pandas' own, which have missing values; "float64"
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

Columns = Mapping[str, str]
"""The type of each column."""
TIME = "datetime64[ms, UTC]"


def _columns(declared: str) -> Columns:
    """Return the columns of "name name: type; name: type", in this order."""
    parts = [part.split(": ") for part in declared.split("; ") if part]
    return {name: dtype for names, dtype in parts for name in names.split()}


_LINE: Columns = {"time": TIME, **_columns("attempt step: int64")}

METRICS: Columns = {
    **_LINE,
    **_columns(
        "optimizer_step: Int64; reward_mean zero_advantage_share turns_mean prompt_tokens_mean "
        "response_tokens_mean generated_tokens completion_tokens_mean answered_share "
        "truncated_share turn_error_share: float64"
    ),
}
"""Columns that every frame of metrics has; those of a method and of the trainer follow."""

EVENTS: Mapping[str, Columns] = {
    kind: _columns(declared)
    for kind, declared in {
        "run_started": "config strategy: string",
        "saved": "",
        "run_finished": "instruction_id instruction: string; em: float64",
        "resumed": "from_step: Int64; changed: object",
        "cut_back": "",
        "evaluated": "split when prompt instruction_id: string; trained: Int64; em: float64; "
        "n: Int64; measure: string; by_stratum: object",
        "sampled": "rollouts of: Int64; reward_mean: float64",
        "training_rows": "data: string; rows questions tokens steps rollouts succeeded "
        "left_out: Int64; reward_mean: float64",
        "instruction_born": "id text parent origin: string; born: Int64; critique: string; "
        "score parent_score: float64; shown: object",
        "instruction_rejected": "reason text parent origin: string; score parent_score: float64",
        "instruction_pruned": "id: string; weight: float64; observed_rollouts: Int64; "
        "cause: string",
        "population": "members: object",
        "evolution": "parents: object; rounds proposed verified accepted saved population: Int64",
        "proposal_failed": "reason: string",
        "phase_failed": "reason: string; in_a_row: Int64",
        "proposals_ended": "reason: string",
        "best_instruction": "id: string; weight: float64; observed_steps observed_rollouts: Int64; "
        "runner_up: string; too_close_to_call: boolean",
        "best_kept": "id: string; policy_step trained: Int64; em initial_em: float64; interval: object; "
        "observed_steps observed_rollouts: Int64; leader text: string",
        "gepa_phase": "dev train budget: Int64",
        "gepa_progress": "evaluations budget instructions: Int64; best_dev_score: float64",
        "gepa_phase_ended": "evaluations budget asked proposed valid accepted: Int64; "
        "initial_dev_score best_dev_score: float64",
        "hard_samples": "epoch seen hard newly_hard graduated solved_by_hint: Int64",
        "hint_phase": "phase hard dev train budget: Int64; reflection: string",
        "hint_progress": "evaluations budget hints: Int64; best_mean_dev_score: float64",
        "hint_accepted": "text parent: string; mean_dev_score: float64",
        "hint_rejected": "reason text parent: string",
        "hint_phase_ended": "phase evaluations budget asked proposed valid accepted "
        "covering: Int64; covering_texts: object; solved_without solved_by_cover: float64; "
        "solved: object",
        "context_ratios": "log10_from log10_to: float64; counts: object",
        "notice": "text: string",
    }.items()
}
"""Fields of each kind of event, except `time`, `attempt`, `step` and `kind`."""

INSTRUCTIONS = _columns(
    "id parent origin: string; born: int64; weight: float64; observed_rollouts: int64; "
    "score parent_score: float64; pruned: Int64; best: boolean; critique text: string"
)
TRAJECTORIES = _columns(
    "step attempt: int64; purpose task_id question: string; answers: object; "
    "stratum instruction: string; group: int64; sampled_instruction sampled_hint "
    "trained_instruction trained_hint teacher_instruction teacher_hint: string; turns: object; "
    "stop answer: string; reward: float64; reward_parts: object; feedback: string; prompt_tokens completion_tokens "
    "generated_tokens: int64; prompt_ids trained_prompt_ids completion_ids mask: object"
)
COSTS = _columns(
    "attempt step: int64; committed: boolean; kind: string; rollouts generated_tokens: int64; "
    "model state: string; prompt_tokens completion_tokens: int64; estimated: boolean; "
    "money: float64; error: string; seconds: float64"
)


class RunReader(RunDir):
    """A run folder to read, also as data frames. A run without a file has a frame without rows."""

    def metrics_frame(self) -> "pd.DataFrame":
        """Read metrics.jsonl, one row per optimizer step: `METRICS`, then all other numbers."""
        rows = self.read_metrics()
        others = dict.fromkeys((key for row in rows for key in row), "float64")
        return _frame(rows, {**METRICS, **{k: v for k, v in others.items() if k not in METRICS}})

    def events_frame(self, kind: str | None = None) -> "pd.DataFrame":
        """Read events.jsonl, one row per event.

        Args:
            kind: only events of this kind, with a column for each of its fields (`EVENTS`). With
                None all events, whose fields are dicts in the column `fields`.
        """
        rows = self.read_events()
        head: Columns = {**_LINE, "kind": "string"}
        if kind is None:
            nested = [{**row, "fields": _without(row, head)} for row in rows]
            return _frame(nested, {**head, "fields": "object"})
        chosen = [row for row in rows if row["kind"] == kind]
        known = EVENTS.get(kind, {})
        others = {key: "object" for row in chosen for key in _without(row, {**head, **known})}
        return _frame(chosen, {**head, **known, **others})

    def instructions_frame(self) -> "pd.DataFrame":
        """Read all instructions of the run, by birth: `cotune.run.lineage.InstructionRow`."""
        rows = instruction_rows(self)
        found = [{name: getattr(row, name) for name in INSTRUCTIONS} for row in rows]
        return _frame(found, INSTRUCTIONS)

    def trajectories_frame(
        self, step: int | None = None, purpose: Purpose | None = None
    ) -> "pd.DataFrame":
        """Read the stored rollouts, one row per rollout: `TRAJECTORIES`.

        Args:
            step: only those of this step.
            purpose: only of this purpose, by the name in the file's name; "evaluate" stands for
                all evaluations ("evaluate_before", "evaluate_during", …).
        """
        rows: list[Row] = []
        for found_step, found in self.trajectory_files():
            wanted = purpose is None or found == purpose or found.startswith(f"{purpose}_")
            if wanted and step in (None, found_step):
                rows += map(_flat, self.read_trajectories(found_step, found))
        return _frame(rows, TRAJECTORIES)

    def costs_frame(self) -> "pd.DataFrame":
        """Read the view `costs` of ledger.sqlite, in order: `cotune.run.ledger.CostRow`.

        Raises:
            ConfigError: the file is no ledger, or one of another schema version.
        """
        return _frame(cost_rows(self.ledger_path), COSTS)


def open_run(path: str | Path) -> RunReader:
    """Open a run folder, finished or not, to read: its `read_…` methods and `…_frame` methods.

    Raises:
        ConfigError: no run folder, or one of another schema_version.
    """
    return RunReader.open(path)


def cost_rows(path: Path) -> list[Row]:
    """Read the rows of a ledger's view `costs`; [] if there is no ledger. Never writes.

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


def _without(row: Row, columns: Columns) -> Row:
    return {key: value for key, value in row.items() if key not in columns}


def _flat(row: Row) -> Row:
    """Return a stored rollout with the columns of `TRAJECTORIES`."""
    task, sampled, trained = row["task"], row["sampled"], row["trained"] or {}
    teacher = row.get("teacher", {})
    return {
        **row,
        "task_id": task["id"],
        **{name: task[name] for name in ("question", "answers", "stratum")},
        "sampled_instruction": sampled["instruction"],
        "sampled_hint": sampled["hint"],
        "trained_instruction": trained.get("instruction"),
        "trained_hint": trained.get("hint"),
        "teacher_instruction": teacher.get("instruction"),
        "teacher_hint": teacher.get("hint"),
    }


def _frame(rows: Iterable[Row], columns: Columns) -> "pd.DataFrame":
    """Return rows as a frame of exactly these columns and types; absent values are missing."""
    import pandas as pd

    def column(values: list[Any], dtype: str) -> Any:
        if dtype == TIME:
            milliseconds = pd.Series([round(value * 1000) for value in values], dtype="int64")
            return pd.to_datetime(milliseconds, unit="ms", utc=True).astype(TIME)
        if dtype == "boolean":
            values = [None if value is None else bool(value) for value in values]
        return pd.Series(values, dtype=dtype)

    kept = list(rows)
    return pd.DataFrame(
        {name: column([row.get(name) for row in kept], dtype) for name, dtype in columns.items()}
    )
