"""Settings of every test."""

import gc

import pytest
from hypothesis import settings

from cotune.utils.packages import installed
from tests import forked
from tests.needing import TRL_FOLDER, WITH_NOTEBOOK, WITH_TRL

# What a busy machine takes for an example says nothing about the code.
settings.register_profile("cotune", deadline=None, max_examples=50)
settings.load_profile("cotune")

# They import these packages at their top: without them, as in veRL's environment, they are left out.
collect_ignore = [] if installed("trl") else [*WITH_TRL]
collect_ignore += [] if installed("nbclient") else [*WITH_NOTEBOOK]
collect_ignore_glob = [] if installed("trl") else [f"{TRL_FOLDER}/test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Start the process that forks before the workers of a parallel run, which share it."""
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        forked.start_server()


def pytest_collection_finish() -> None:
    """Exempt all that was imported from garbage collection, which each trainer asks for several times."""
    gc.collect()
    gc.freeze()
