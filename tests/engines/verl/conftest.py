"""Every test here is marked `verl`, and left out where veRL is not installed (make test-verl)."""

from pathlib import Path

import pytest

from cotune.utils.packages import installed

_HERE = Path(__file__).parent
# What veRL brings is imported at the top of the tests: without it they cannot be collected.
collect_ignore_glob = [] if installed("verl") else ["test_*.py"]


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.verl)
            item.add_marker(
                pytest.mark.timeout(900)
            )  # a start of Ray takes its time on a busy machine
