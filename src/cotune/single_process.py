"""The comm of a run in one process."""

import os
from typing import Any


class SingleProcess:
    """The comm of a run in one process."""

    rank = 0
    size = 1

    def broadcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value]


def launched_rank() -> int:
    """The number of this process among those that a launcher started together; they need not have met."""
    return int(os.environ.get("RANK", "0"))
