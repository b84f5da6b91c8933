"""Calls of many episodes that await, made together: an environment answers batches, and one at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cotune.errors import EngineError


class Together:
    """Awaitable calls of a function that takes and returns lists.

    While one call runs in a thread, what is asked for gathers; the next call takes all of
    it. So the function is never called twice at a time, however many episodes there are.

    Args:
        function: items to results, one each, in order.
        thread: where it is called, of a single worker; functions that share it are never called at
            the same time. One of its own by default.
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
        """Return its result; raise what the call that took it raised."""
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
            results, error = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._outcome, [item for item, _ in taken]
            )
            for number, (_, answer) in enumerate(taken):
                if answer.done():
                    continue
                if error is None:
                    answer.set_result(results[number])
                else:
                    answer.set_exception(error)
        self._running = None

    def _outcome(self, items: list[Any]) -> tuple[Sequence[Any], Exception | None]:
        """The results, or what the call raised: as an exception that a future takes."""
        try:
            results = self._function(items)
        # A future takes no StopIteration, and SystemExit would end the whole process: who awaits
        # would wait forever.
        except (StopIteration, SystemExit) as error:
            return (), EngineError(f"an environment raised {type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - raised again by who awaits
            return (), error
        if len(results) != len(items):
            return (), EngineError(
                f"asked for {len(items)} results, an environment or its rewards gave {len(results)}"
            )
        return results, None


class Groups:
    """Awaitable calls that wait for their group: what scores a rollout sees its group-mates, too.

    Args:
        call: takes one item; those of a group are given to it in the same moment, so that a `Together`
            takes them along in one call.
    """

    def __init__(self, call: Callable[[Any], Awaitable[Any]]) -> None:
        self._call = call
        self._missing: dict[str, int] = {}
        self._complete: dict[str, asyncio.Event] = {}

    async def __call__(self, group: str, size: int, item: Any) -> Any:
        """The item's result, once all `size` of its group are there or have left."""
        event = self._arrive(group, size)
        await event.wait()
        return await self._call(item)

    def leave(self, group: str, size: int) -> None:
        """One of the group will not come."""
        self._arrive(group, size)

    def _arrive(self, group: str, size: int) -> asyncio.Event:
        event = self._complete.setdefault(group, asyncio.Event())
        self._missing[group] = self._missing.get(group, size) - 1
        if self._missing[group] == 0:
            event.set()
            del self._missing[group], self._complete[group]
        return event
