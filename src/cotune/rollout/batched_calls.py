"""Batch the awaited calls of many episodes, so that an environment answers several of them in one call."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from cotune.errors import EngineError
from cotune.utils.background import Worker

_WINDOW = 0.005
"""Seconds that a call waits for others to join it."""


def parallel_calls(owner: object, method: str, attribute: str) -> int:
    """Return how many calls of a method may run at the same time, in other threads; 0 if they must not.

    An attribute of the owner holds the number. It holds for the method it was written beside: a class that
    overrides the method does not inherit the number.
    """
    for holder in (owner, *type(owner).__mro__):
        names = getattr(holder, "__dict__", ())
        if attribute in names:
            return getattr(owner, attribute)
        if method in names:
            break
    return 0


class Together:
    """Batch awaited calls of a function that takes and returns lists.

    Requests that arrive at about the same time, or while as many calls run as may, go into one call.

    Args:
        function: maps a list of items to a list of results, in the same order.
        parallel: calls that may run at the same time, each in a thread.
        worker: the thread of all calls; functions that share it are never called at the same time. None
            takes a new one for each call.
    """

    def __init__(
        self,
        function: Callable[[Sequence[Any]], Sequence[Any]],
        parallel: int = 1,
        worker: Worker | None = None,
    ) -> None:
        self._function = function
        self._free = parallel
        self._worker = worker
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._gathering = False
        self._running = set[asyncio.Task[None]]()

    async def __call__(self, item: Any) -> Any:
        """Return the item's result, or raise the error of the call that included it."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._free and not self._gathering:
            self._gathering = True
            self._free -= 1
            task = asyncio.create_task(self._run())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return await answer

    async def _run(self) -> None:
        await asyncio.sleep(_WINDOW)
        self._gathering = False
        while self._waiting:
            calls = self._waiting
            self._waiting = []
            results: Sequence[Any] = ()
            error: Exception | None
            try:
                worker = self._worker or Worker()
                results, error = await worker.call(self._outcome, [item for item, _ in calls])
            except Exception as failure:  # noqa: BLE001 - no thread can be started: all who wait are told
                error = failure
            for number, (_, answer) in enumerate(calls):
                if answer.done():
                    continue
                if error is None:
                    answer.set_result(results[number])
                else:
                    answer.set_exception(error)
        self._free += 1

    def _outcome(self, items: list[Any]) -> tuple[Sequence[Any], Exception | None]:
        """Return the results, or an error in a form that a future accepts."""
        try:
            results = self._function(items)
        except BaseException as error:  # noqa: BLE001 - raised again in the awaiting task
            # The others would end the process, or leave the awaiting task without an answer.
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                return (), error
            return (), EngineError(f"an environment raised {type(error).__name__}: {error}")
        if len(results) != len(items):
            return (), EngineError(
                f"asked for {len(items)} results, an environment or its rewards gave {len(results)}"
            )
        return results, None
