"""The report of a run or a suite: one HTML file without scripts, readable from disk."""

from pathlib import Path

from cotune.experiments.compare.suite_summary import is_suite_folder
from cotune.experiments.report.run_report import write_run_report
from cotune.run.run_dir import RunDir

__all__ = ["write_report"]


def write_report(folder: RunDir | Path | str) -> Path:
    """Write report.html into the folder of a run or a suite, from its files only; return its path.

    Unfinished ones are reported as far as they came.

    Raises:
        ConfigError: `folder` holds neither, or one of its files cannot be read.
    """
    path = folder.path if isinstance(folder, RunDir) else Path(folder)
    if is_suite_folder(path):
        from cotune.experiments.report.suite_report import write_suite_report

        return write_suite_report(path)
    return write_run_report(path)
