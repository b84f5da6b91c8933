"""The repository stays within its size."""

import pytest

from tests.budget import LIMITS, sizes


@pytest.mark.xfail(strict=False, reason="the limits are not reached yet")
def test_nothing_is_above_its_limit() -> None:
    found = sizes()
    assert not {name: found[name] for name, limit in LIMITS.items() if found[name] > limit}
