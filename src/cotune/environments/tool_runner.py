"""Run the user's functions: several at a time, each with a timeout, so that none can hang a run.

A function that takes too long continues in its thread, since Python cannot stop it, but nothing
waits for it. Its slot is freed immediately, and the thread does not keep the process from ending.
"""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cotune.utils.background import BackgroundLoop, Worker

_PATIENCE = 1.0  # seconds in which an event loop that is not blocked answers
_LOOP = BackgroundLoop()
"""Starts calls and waits for them; what is async in the user's functions runs on another loop."""


@dataclass(eq=False)
class Job:
    """A call of a function, sync or async, with its timeout; and, once it was made, what came of it.

    Attributes:
        worker: the thread that makes the call; None for a new thread.
        value: what the function returned.
        error: what it raised; a TimeoutError if it took too long.
    """

    function: Callable[..., Any]
    seconds: float
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    worker: Worker | None = None
    value: Any = None
    error: BaseException | None = None
    timed_out: bool = False

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def runs_in_caller(self) -> bool:
        """Return whether it is a sync function without a timeout or a thread of its own."""
        return self.worker is None and self.seconds == math.inf and not self.is_async

    def give_up(self) -> None:
        """Note that it took too long."""
        self.error = TimeoutError(f"took longer than {self.seconds:g} s")
        self.timed_out = True


class ToolRunner:
    """Run lanes of jobs at the same time, and the jobs of a lane one after the other.

    They run in threads, where async functions wait for one event loop in the background. Sync functions without
    a timeout or a thread of their own run in the caller's thread, before the others.

    Args:
        concurrency: jobs that run at the same time, of all calls of `run`, which several threads may make.
    """

    def __init__(self, concurrency: int) -> None:
        self._slots = asyncio.Semaphore(concurrency)
        self._async_loop = BackgroundLoop()

    def run(self, lanes: Sequence[Sequence[Job]]) -> None:
        """Run all jobs.

        A lane ends with its first job that takes too long; the jobs after it are not run and count as
        too long as well.
        """
        others: list[list[Job]] = []
        for lane in lanes:
            for job in lane:
                if job.runs_in_caller:
                    self._run_in_caller(job)
            others.append([job for job in lane if not job.runs_in_caller])
        if any(others):
            _LOOP.run(self._run_lanes(others))

    def _run_in_caller(self, job: Job) -> None:
        try:
            value = job.function(**job.kwargs)
            if inspect.isawaitable(value):
                value = self._async_loop.run(_await(value))
            job.value = value
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - user code; SystemExit is an outcome as well
            job.error = error

    async def _run_lanes(self, lanes: Sequence[Sequence[Job]]) -> None:
        await asyncio.gather(*(self._run_lane(lane) for lane in lanes))

    async def _run_lane(self, lane: Sequence[Job]) -> None:
        has_timed_out = False
        for job in lane:
            if has_timed_out:
                job.give_up()
                continue
            async with self._slots:
                await self._make(job)
            has_timed_out = job.timed_out

    async def _make(self, job: Job) -> None:
        """Make a call and take what comes of it."""
        call = asyncio.ensure_future(self._call(job))
        await asyncio.wait([call], timeout=None if job.seconds == math.inf else job.seconds)
        if call.done():
            job.error = asyncio.CancelledError() if call.cancelled() else call.exception()
            job.value = None if job.error else call.result()
            return
        call.cancel()
        job.give_up()
        # An async function that blocks its loop (with `time.sleep`) gets no others there.
        if job.is_async:
            answer = asyncio.wrap_future(self._async_loop.submit(asyncio.sleep(0)))
            if not (await asyncio.wait([answer], timeout=_PATIENCE))[0]:
                self._async_loop = BackgroundLoop()

    async def _call(self, job: Job) -> Any:
        worker = job.worker or Worker()
        value = await worker.call(partial(job.function, **job.kwargs))
        if inspect.isawaitable(value):
            value = await asyncio.wrap_future(self._async_loop.submit(_await(value)))
        return value


async def _await(value: Awaitable[Any]) -> Any:
    return await value
