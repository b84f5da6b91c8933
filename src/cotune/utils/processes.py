"""Which of the processes that a launcher started this one is."""

import os


def launched_rank() -> int:
    """The number of this process among those that a launcher started together; they need not have met."""
    return int(os.environ.get("RANK", "0"))
