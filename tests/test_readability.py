"""The source reads no worse than it did."""

from tests.readability import LEAST, LIMITS, read_source


def test_no_row_is_beyond_its_limit() -> None:
    rows = read_source().rows()
    above = {name: rows[name] for name, limit in LIMITS.items() if rows[name] > limit}
    below = {name: rows[name] for name, least in LEAST.items() if rows[name] < least}
    beyond = above | below
    assert not beyond, f"see `python -m tests.readability --list`; beyond its limits: {beyond}"
