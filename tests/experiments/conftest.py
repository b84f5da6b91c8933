"""Suites without the processes of their runs."""

from functools import partial

import pytest

from cotune.experiments import chains
from tests.experiments.compare.folders import Processes, Start


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Have an outcome make the files of each run, in place of a process; nobody waits for it."""
    monkeypatch.setattr(chains.time, "sleep", lambda _: None)
    return partial(Processes, monkeypatch)
