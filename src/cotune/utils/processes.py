"""The rank of this process among those of a launcher."""

import os


def launched_rank() -> int:
    """Return this process's rank among those that a launcher started; they need not be connected yet.

    0 if the environment does not name the rank of one of several processes, such as a RANK that was left behind.
    """
    rank = os.environ.get("RANK", "")
    size = os.environ.get("WORLD_SIZE", "")
    launched = rank.isdecimal() and size.isdecimal() and int(rank) < int(size)
    return int(rank) if launched else 0
