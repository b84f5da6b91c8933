"""A run's or a comparison's report: one HTML file without scripts, readable from disk."""

from pathlib import Path

from cotune.experiments.compare.suite_summary import is_suite_folder
from cotune.experiments.report.run_report import write_run_report
from cotune.run.run_dir import RunDir

__all__ = ["write_report"]


def write_report(folder: RunDir | Path | str) -> Path:
    """Write report.html into a run folder or a comparison's folder, from its files only.

    A comparison's folder has a summary.json whose arms name their folders, or the arms' run folders
    as its subfolders. A run without a summary is reported as far as it came.

    Returns:
        The path of report.html.

    Raises:
        ConfigError: `folder` holds no run, or one of its files cannot be read.
    """
    path = folder.path if isinstance(folder, RunDir) else Path(folder)
    if is_suite_folder(path):
        from cotune.experiments.report.suite_report import write_suite_report

        return write_suite_report(path)
    return write_run_report(path)
