"""Every test here is marked `verl`, and left out where veRL is not installed (make test-verl)."""

from pathlib import Path

import pytest

from cotune.utils.packages import installed

_HERE = Path(__file__).parent
# What veRL brings is imported at the top of the tests: without it they cannot be collected.
collect_ignore_glob = [] if installed("verl") else ["test_*.py"]
_FIRST = ("test_resuming", "test_failing", "test_distillation", "test_lora", "test_contract")
"""The modules with whole runs, in the order in which two processes (pytest -n 2) both are busy to the end: each of them
begins with two of these tests."""


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.verl)
            # A start of Ray takes its time on a busy machine.
            item.add_marker(pytest.mark.timeout(900))
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    name = item.path.stem
    return _FIRST.index(name) if item.path.parent == _HERE and name in _FIRST else len(_FIRST)
