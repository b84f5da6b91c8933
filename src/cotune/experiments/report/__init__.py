"""The report of a run or a suite: one HTML file without scripts, readable from disk."""

from pathlib import Path

from cotune.experiments.report.run_report import write_run_report
from cotune.run.run_dir import RunDir

__all__ = ["write_report"]


def write_report(folder: RunDir | Path | str) -> Path:
    """Write report.html into a run folder, from its files only; return its path.

    Unfinished runs are reported as far as they came.

    Raises:
        ConfigError: `folder` is no run's, or one of its files cannot be read.
    """
    return write_run_report(folder.path if isinstance(folder, RunDir) else Path(folder))
