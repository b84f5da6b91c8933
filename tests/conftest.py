"""Settings of every test."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings

from tests import forked, thrift
from tests.command_line import Command, Ended, Refused

# What a busy machine takes for an example says nothing about the code.
settings.register_profile("cotune", deadline=None, max_examples=50)
settings.load_profile("cotune")


def pytest_configure(config: pytest.Config) -> None:
    """Start the process that forks before the workers of a parallel run, which share it.

    What is imported stays: collecting garbage meanwhile takes a sixth of the collection.
    """
    gc.disable()
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        forked.start_server()


def pytest_collection_finish() -> None:
    """Exempt all that was imported from garbage collection, which each trainer asks for several times."""
    thrift.save_time()
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Run a command line in this process, and give how it ended and what it printed.

    It sets variables for its own process, which here is the tests'. Progress bars are read from
    them when transformers is imported, so here it may be too late.
    """
    from transformers.utils import logging

    from cotune.cli import app

    def run(*words: object) -> Ended:
        monkeypatch.setattr("sys.argv", ["cotune", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            app.main()
        return Ended(stopped.value.code, *capsys.readouterr())

    logging.disable_progress_bar()
    with mock.patch.dict(os.environ):
        yield run
    logging.enable_progress_bar()


@pytest.fixture
def refused(run_command: Command) -> Refused:
    """Give the one line on stderr of a command that must end with status 2 and print nothing else."""
    from tests.helpers import without_loading

    def error_of(*words: object) -> str:
        ended = run_command(*words)
        assert ended.status == 2, ended
        assert without_loading(ended.out) == ""
        assert ended.err.count("\n") == 1, ended.err
        assert ended.err.startswith("cotune: ")
        return ended.err

    return error_of
