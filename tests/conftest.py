"""Settings of every test."""

import gc
import os
from collections.abc import Callable, Iterator
from unittest import mock

import pytest
from hypothesis import settings

from tests import forked, thrift

# What a busy machine takes for an example says nothing about the code.
settings.register_profile("cotune", deadline=None, max_examples=50)
settings.load_profile("cotune")


def pytest_configure(config: pytest.Config) -> None:
    """Start the process that forks before the workers of a parallel run, which share it."""
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        forked.start_server()


def pytest_collection_finish() -> None:
    """Exempt all that was imported from garbage collection, which each trainer asks for several times."""
    thrift.save_time()
    gc.collect()
    gc.freeze()


@pytest.fixture
def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """Give the one line on stderr of a command that must end with status 2 and print nothing else.

    The command line sets variables for its own process, which here is the tests'. Progress bars are read from
    them when transformers is imported, so here it may be too late.
    """
    from transformers.utils import logging

    from cotune.cli import app
    from tests.helpers import without_loading

    def error_of(*words: object) -> str:
        monkeypatch.setattr("sys.argv", ["cotune", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            app.main()
        printed = capsys.readouterr()
        assert stopped.value.code == 2, printed
        assert without_loading(printed.out) == ""
        assert printed.err.count("\n") == 1, printed.err
        assert printed.err.startswith("cotune: ")
        return printed.err

    logging.disable_progress_bar()
    with mock.patch.dict(os.environ):
        yield error_of
    logging.enable_progress_bar()
