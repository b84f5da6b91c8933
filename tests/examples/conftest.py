"""The example `three_tools`, imported."""

import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import pytest

from tests.examples.three_tools import FOLDER

MODULES = ("task", "plain_trl", "with_cotune", "make_policy")


@pytest.fixture(scope="module")
def example() -> Iterator[dict[str, ModuleType]]:
    """The example's modules by name, which are removed afterwards."""
    sys.path.insert(0, str(FOLDER))
    yield {name: import_module(name) for name in MODULES}
    sys.path.remove(str(FOLDER))
    for name in MODULES:
        sys.modules.pop(name, None)
