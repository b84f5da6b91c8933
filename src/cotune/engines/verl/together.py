"""Calls of many episodes that await, made together: an environment answers batches, and one at a time."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Together:
    """Awaitable calls of a function that takes and returns lists.

    While one call runs in a thread of its own, what is asked for gathers; the next call takes all of
    it. So the function is never called twice at a time, however many episodes there are.

    Args:
        function: items to results, one each, in order.
    """

    def __init__(self, function: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        self._function = function
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._running: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cotune")

    async def __call__(self, item: Any) -> Any:
        """Its result; raises what the call that took it raised."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        # A task that was ready in the same moment may still want to come along.
        await asyncio.sleep(0)
        while self._waiting:
            taken, self._waiting = self._waiting, []
            try:
                results = await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._function, [item for item, _ in taken]
                )
                pairs = list(zip(taken, results, strict=True))
            except Exception as error:  # noqa: BLE001 - raised again by who awaits
                for _, answer in taken:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for (_, answer), result in pairs:
                if not answer.done():
                    answer.set_result(result)
        self._running = None
