"""The repository stays within its size."""

from tests.budget import LIMITS, sizes


def test_nothing_is_above_its_limit() -> None:
    table = sizes()
    above = {name: table[name] for name, limit in LIMITS.items() if table[name] > limit}
    assert not above, f"above the limits of tests/budget.py: {above}"
