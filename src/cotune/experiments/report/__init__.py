"""The report of a run or a suite: one HTML file without scripts, readable from disk."""

import logging
from collections.abc import Mapping
from pathlib import Path

from cotune.experiments.report.run_report import write_run_report
from cotune.run.run_dir import RunDir
from cotune.utils.text import one_line

__all__ = ["ReportListener", "write_report"]

_log = logging.getLogger("cotune")


def write_report(folder: RunDir | Path | str) -> Path:
    """Write report.html into a run folder, from its files only; return its path.

    Unfinished runs are reported as far as they came.

    Raises:
        ConfigError: `folder` is no run's, or one of its files cannot be read.
    """
    return write_run_report(folder.path if isinstance(folder, RunDir) else Path(folder))


class ReportListener:
    """Writes the report anew at each checkpoint, so that the page in a browser follows the training."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def event(self, kind: str, step: int, fields: Mapping[str, object]) -> None:
        if kind == "saved":
            try:
                write_report(self._folder)
            except Exception as error:  # noqa: BLE001  no page is worth a training, whose end writes it again
                _log.warning("report.html is not up to date: %s", one_line(str(error))[:200])

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...
