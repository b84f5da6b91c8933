"""The rank of this process among those of a launcher."""

import os


def launched_rank() -> int:
    """Return this process's rank among those that a launcher started; they need not be connected yet."""
    return int(os.environ.get("RANK", "0"))
