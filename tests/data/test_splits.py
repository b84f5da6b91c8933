"""Rows that are held out, by their keys."""

from cotune.data.splits import hold_out


def test_rows_with_the_same_key_are_in_one_split() -> None:
    keys = [f"q{i % 20}" for i in range(160)]
    places = hold_out(keys, {"validation": 1, "test": 2}, "rows")
    assert {split: len(rows) for split, rows in places.items()} == {
        "train": 136,
        "validation": 8,
        "test": 16,
    }
    assert sum(len({keys[i] for i in rows}) for rows in places.values()) == 20


def test_rows_that_share_one_key_are_split_one_by_one() -> None:
    places = hold_out(["q"] * 40, {"validation": 4, "test": 4}, "rows")
    assert {split: len(rows) for split, rows in places.items()} == {
        "train": 32,
        "validation": 4,
        "test": 4,
    }
