"""A run folder as pandas data frames. docs/reference/run-folder.md documents what the files hold."""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from cotune.errors import ConfigError
from cotune.run.json_files import Row
from cotune.run.ledger import SCHEMA_VERSION, CostRow
from cotune.run.lineage import instruction_rows
from cotune.run.run_dir import RunDir
from cotune.types import Purpose

if TYPE_CHECKING:
    import pandas as pd


class RunReader(RunDir):
    """A run folder to read, also as data frames; a missing file gives an empty frame."""

    def metrics_frame(self) -> "pd.DataFrame":
        """Read metrics.jsonl, one row per optimizer step."""
        return _frame(self.read_metrics())

    def events_frame(self, kind: str | None = None) -> "pd.DataFrame":
        """Read events.jsonl, one row per event, with a column for each field.

        Args:
            kind: only events of this kind; None for all.
        """
        return _frame(row for row in self.read_events() if kind in (None, row["kind"]))

    def instructions_frame(self) -> "pd.DataFrame":
        """Read all instructions of the run, by birth: `cotune.run.lineage.InstructionRow`."""
        return _frame(map(asdict, instruction_rows(self)))

    def trajectories_frame(
        self, step: int | None = None, purpose: Purpose | None = None
    ) -> "pd.DataFrame":
        """Read the stored rollouts, one row per rollout; `task.id` is the column `task_id`.

        Args:
            step: only those of this step.
            purpose: only of this purpose, by the name in the file's name; "evaluate" stands for
                all evaluations ("evaluate_before", "evaluate_during", …).
        """
        import pandas as pd

        rows: list[Row] = []
        for file_step, file_purpose in self.trajectory_files():
            wanted = purpose in (None, file_purpose) or file_purpose.startswith(f"{purpose}_")
            if wanted and step in (None, file_step):
                rows += self.read_trajectories(file_step, file_purpose)
        return pd.json_normalize(rows, sep="_")

    def costs_frame(self) -> "pd.DataFrame":
        """Read the view `costs` of ledger.sqlite, in order: `cotune.run.ledger.CostRow`.

        Raises:
            ConfigError: the file is no ledger, or one of another schema version.
        """
        return _frame(cost_rows(self.ledger_path))


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
        try:
            return _select(f"{address}?mode=ro", names, path)
        except sqlite3.OperationalError:
            # In a folder that cannot be written SQLite cannot share the file with a writer.
            return _select(f"{address}?immutable=1", names, path)
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
        entries = database.execute(f"SELECT {', '.join(names)} FROM costs ORDER BY id").fetchall()
    rows = [dict(zip(names, entry, strict=True)) for entry in entries]
    flags = ("committed", "estimated")  # SQLite has no booleans
    return [{**row, **{name: bool(row[name]) for name in flags}} for row in rows]


def _frame(rows: Iterable[Row]) -> "pd.DataFrame":
    import pandas as pd

    frame = pd.DataFrame(list(rows))
    if "time" in frame:
        frame["time"] = pd.to_datetime(frame["time"], unit="s", utc=True)
    return frame
