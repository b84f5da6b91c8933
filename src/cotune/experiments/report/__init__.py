"""The report of a run or a suite: one HTML file without scripts, readable from disk."""

import logging
from collections.abc import Mapping
from pathlib import Path

from cotune.experiments.report.run_report import write_report
from cotune.utils.text import one_line

__all__ = ["ReportListener", "write_report"]

_log = logging.getLogger("cotune")


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
