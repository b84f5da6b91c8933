"""Requests of several clients to one index, which is searched in a thread of its own."""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cotune.data.documents import Document

_T = TypeVar("_T")


class StoppingError(Exception):
    """The server ends before a request could be answered."""


class DaemonThread:
    """Runs calls one after another, in a thread that no end of the process waits for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending = 0
        self._awaited: set[asyncio.Future[Any]] = set()
        self._stopped = False

    @property
    def busy(self) -> bool:
        """Whether a call runs or waits; for the thread of the event loop."""
        return self._pending > 0

    async def run(self, call: Callable[..., _T], *args: Any) -> _T:
        """What a call gives, or its exception; StoppingError after `stop`."""
        if self._stopped:
            raise StoppingError
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()

        def job() -> None:
            result: Any = None
            failure: BaseException | None = None
            try:
                result = call(*args)
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                failure = error
            try:
                loop.call_soon_threadsafe(self._ended, answer, result, failure)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._pending += 1
        self._jobs.put(job)
        self._awaited.add(answer)
        try:
            return await answer
        finally:
            self._awaited.discard(answer)

    def stop(self) -> None:
        """Ends the waiting for all calls with StoppingError; the one that runs goes on unheard."""
        self._stopped = True
        for answer in self._awaited:
            if not answer.done():
                answer.set_exception(StoppingError())

    def _work(self) -> None:
        while True:
            self._jobs.get()()

    def _ended(
        self, answer: "asyncio.Future[Any]", result: Any, failure: BaseException | None
    ) -> None:
        self._pending -= 1
        if answer.done():  # cancelled
            return
        if failure is None:
            answer.set_result(result)
        elif isinstance(failure, Exception) and not isinstance(failure, StopIteration):
            answer.set_exception(failure)
        else:
            answer.set_exception(RuntimeError(f"{type(failure).__name__}: {failure}"))


@dataclass(eq=False)
class _Request:
    """Queries of a client, and what was found of them so far."""

    queries: Sequence[str]
    top_k: int
    answer: "asyncio.Future[list[list[Document]]]"
    found: list[list[Document]] = field(default_factory=list[list[Document]])

    @property
    def rest(self) -> int:
        return len(self.queries) - len(self.found)

    def part(self, count: int) -> Sequence[str]:
        """The next so many queries."""
        return self.queries[len(self.found) : len(self.found) + count]


class Batcher:
    """Answers requests in one thread; those that wait for it meanwhile are answered together.

    Together means: in one call of the index where they ask for equally many passages. A lone
    request is not kept waiting for others, and one of many queries takes turns with the others. Of
    a call that fails each request is searched by itself, so that the others are answered.

    Args:
        search: the index; called in one thread.
        largest: queries of one call.
    """

    def __init__(
        self, search: Callable[[Sequence[str], int], list[list[Document]]], largest: int = 2048
    ) -> None:
        self._search, self._largest = search, largest
        self._waiting: deque[_Request] = deque()
        self._at_work: list[_Request] = []
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self.thread = DaemonThread("retrieval")

    async def documents(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        """As the index's; StoppingError after `stop`. Cancelled, its queries are not searched."""
        if self._stopped:
            raise StoppingError
        if not queries:
            return []
        request = _Request(queries, top_k, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        return await request.answer

    def stop(self) -> None:
        """Ends all that wait, and what comes yet, with StoppingError."""
        self._stopped = True
        for request in (*self._at_work, *self._waiting):
            if not request.answer.done():
                request.answer.set_exception(StoppingError())
        self._waiting.clear()
        self.thread.stop()

    async def _work(self) -> None:
        while batch := self._next():
            self._at_work = [request for request, _ in batch]
            try:
                await self._answer(batch)
            except Exception as error:  # noqa: BLE001 - each request answers for itself
                if len(batch) == 1:
                    _fail(batch[0][0], error)
                else:
                    await self._one_by_one(batch)
            self._at_work = []
            # Behind the others: a long request holds nobody up for longer than a call.
            self._waiting.extend(r for r, _ in batch if r.rest and not r.answer.done())

    async def _one_by_one(self, batch: Sequence[tuple[_Request, int]]) -> None:
        for request, count in batch:
            if request.answer.done():
                continue
            try:
                await self._answer([(request, count)])
            except Exception as error:  # noqa: BLE001 - each request answers for itself
                _fail(request, error)

    async def _answer(self, batch: Sequence[tuple[_Request, int]]) -> None:
        """One call of the index for a part of each request."""
        queries = [query for request, count in batch for query in request.part(count)]
        found = await self.thread.run(self._search, queries, batch[0][0].top_k)
        if len(found) != len(queries):
            raise RuntimeError(f"the index gave {len(found)} rows for {len(queries)} queries")
        rows = iter(found)
        for request, count in batch:
            request.found += [next(rows) for _ in range(count)]
            if not request.rest and not request.answer.done():  # whoever asked may be gone
                request.answer.set_result(request.found)

    def _next(self) -> list[tuple[_Request, int]]:
        """The request that has waited longest and those behind it that fit, with how much of each."""
        batch: list[tuple[_Request, int]] = []
        room = self._largest
        while self._waiting and room:
            request = self._waiting[0]
            if request.answer.done():  # whoever asked is gone
                self._waiting.popleft()
                continue
            if batch and request.top_k != batch[0][0].top_k:
                break
            count = min(room, request.rest)
            batch.append((self._waiting.popleft(), count))
            room -= count
        return batch


def _fail(request: _Request, error: Exception) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)
