"""Batch the awaited calls of many episodes, so that an environment answers one batch at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cotune.errors import EngineError


class Together:
    """Batch awaited calls of a function that takes and returns lists.

    Requests that arrive while a call runs in a thread are collected, and the next call takes all of
    them. The function is therefore never called concurrently, however many episodes there are.

    Args:
        function: maps a list of items to a list of results, in the same order.
        thread: a single-worker executor that runs the calls; functions that share it are never
            called at the same time. Each instance creates one by default.
    """

    def __init__(
        self,
        function: Callable[[Sequence[Any]], Sequence[Any]],
        thread: ThreadPoolExecutor | None = None,
    ) -> None:
        self._function = function
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._running: asyncio.Task[None] | None = None
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="cotune")

    async def __call__(self, item: Any) -> Any:
        """Return the item's result, or raise the error of the call that included it."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        # Let tasks that became ready at the same moment join this call.
        await asyncio.sleep(0)
        while self._waiting:
            calls = self._waiting
            self._waiting = []
            results, error = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._outcome, [item for item, _ in calls]
            )
            for number, (_, answer) in enumerate(calls):
                if answer.done():
                    continue
                if error is None:
                    answer.set_result(results[number])
                else:
                    answer.set_exception(error)
        self._running = None

    def _outcome(self, items: list[Any]) -> tuple[Sequence[Any], Exception | None]:
        """Return the results, or an error in a form that a future accepts."""
        try:
            results = self._function(items)
        # A future rejects StopIteration, and SystemExit would end the whole process; either way the
        # awaiting task would wait forever.
        except (StopIteration, SystemExit) as error:
            return (), EngineError(f"an environment raised {type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - raised again in the awaiting task
            return (), error
        if len(results) != len(items):
            return (), EngineError(
                f"asked for {len(items)} results, an environment or its rewards gave {len(results)}"
            )
        return results, None


class Groups:
    """Hold awaited calls until their group is complete, so that scoring sees all rollouts.

    Args:
        call: takes one item; a group's items are passed to it at the same moment, so that a
            `Together` puts them into one call.
    """

    def __init__(self, call: Callable[[Any], Awaitable[Any]]) -> None:
        self._call = call
        self._missing: dict[str, int] = {}
        self._complete: dict[str, asyncio.Event] = {}

    async def __call__(self, group: str, size: int, item: Awaitable[Any]) -> Any:
        """Return the awaited item's result, once all `size` items of its group have come or failed."""
        event = self._complete.setdefault(group, asyncio.Event())
        try:
            awaited_item = await item
        finally:
            self._missing[group] = self._missing.get(group, size) - 1
            if self._missing[group] == 0:
                event.set()
                del self._missing[group], self._complete[group]
        await event.wait()
        return await self._call(awaited_item)
