"""The example `three_tools`, imported."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.examples.three_tools import modules


@pytest.fixture(scope="module")
def example() -> Iterator[dict[str, ModuleType]]:
    with modules() as found:
        yield found
