"""Ranks that are threads of this process."""

import threading
from typing import Any


class Threads:
    """A comm whose ranks are threads; a rank that waits for one that left is an error, not a hang."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._values: list[Any] = [None] * size
        self._barrier = threading.Barrier(size, timeout=30)

    def rank_of(self, rank: int) -> "ThreadRank":
        return ThreadRank(self, rank)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values


class ThreadRank:
    def __init__(self, threads: Threads, rank: int) -> None:
        self._threads, self.rank, self.size = threads, rank, threads.size

    def gather(self, value: Any) -> list[Any]:
        return self._threads.exchange(self.rank, value)

    def broadcast(self, value: Any) -> Any:
        return self.gather(value)[0]
