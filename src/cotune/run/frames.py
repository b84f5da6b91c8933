"""A run folder as pandas data frames. docs/reference/run-folder.md documents what the files hold."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from cotune.run.json_files import Row
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
        """Read costs.jsonl, in order: `cotune.run.costs.CostRow`.

        Raises:
            ConfigError: a line is not a row of costs.
        """
        return _frame(map(asdict, self.read_costs()))


def open_run(path: str | Path) -> RunReader:
    """Open a run folder, finished or not, to read: its `read_…` methods and `…_frame` methods.

    Raises:
        ConfigError: no run folder, or one of another schema_version.
    """
    return RunReader.open(path)


def _frame(rows: Iterable[Row]) -> "pd.DataFrame":
    import pandas as pd

    frame = pd.DataFrame(list(rows))
    if "time" in frame:
        frame["time"] = pd.to_datetime(frame["time"], unit="s", utc=True)
    return frame
