"""The report of a run or a suite: one HTML file without scripts, readable from disk."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cotune.errors import ConfigError
from cotune.experiments.report.run_report import write_run_report
from cotune.run.run_dir import RunDir

__all__ = ["ReportListener", "write_report"]


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
            # The page is not worth a training: its end writes it again, and says what is wrong.
            with suppress(OSError, ConfigError):
                write_report(self._folder)

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...
