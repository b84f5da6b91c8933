"""Every test here is marked `verl`, and skipped where veRL is not installed."""

from pathlib import Path

import pytest

from cotune.engine_packages import installed

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    without = pytest.mark.skip(reason="verl is not installed: make test-verl makes its environment")
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.verl)
            if installed("verl") is None:
                item.add_marker(without)
