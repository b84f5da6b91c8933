"""Run the user's functions: several at a time, each with a timeout, so that none can hang a run.

A function that takes too long continues in its thread, since Python cannot stop it, but nothing
waits for it. Its slot is freed immediately, and the thread does not keep the process from ending.
"""

import inspect
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from cotune.errors import ConfigError
from cotune.utils.background import BackgroundLoop, Worker

_PATIENCE = 1.0  # seconds in which an event loop that is not blocked answers


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

    def give_up(self) -> None:
        """Note that it took too long."""
        self.error = TimeoutError(f"took longer than {self.seconds:g} s")
        self.timed_out = True


@dataclass(eq=False)
class _Running:
    """A job that runs, and the jobs of its lane after it."""

    job: Job
    later: deque[Job]
    future: "Future[Any]"
    deadline: float


class ToolRunner:
    """Run lanes of jobs at the same time, and the jobs of a lane one after the other.

    They run in threads, where async functions wait for one event loop in the background. A sync function without
    a timeout or a thread of its own runs in the caller's thread.

    Args:
        concurrency: jobs that run at the same time, of all calls of `run`, which several threads may make.

    Raises:
        ConfigError: `concurrency` is below 1.
    """

    def __init__(self, concurrency: int) -> None:
        if concurrency < 1:
            raise ConfigError(f"concurrency is {concurrency}; expected 1 or more")
        self._slots = threading.Semaphore(concurrency)
        self._loop = BackgroundLoop()

    def run(self, lanes: Sequence[Sequence[Job]]) -> None:
        """Run all jobs.

        A lane ends with its first job that takes too long; the jobs after it are not run and count as
        too long as well.
        """
        waiting = deque(deque(lane) for lane in lanes if lane)
        running: list[_Running] = []
        slots = 0
        try:
            while waiting or running:
                while waiting and self._slots.acquire(blocking=not running):
                    slots += 1
                    running.append(self._start(waiting.popleft()))
                for ended in _wait_for_ends(running):
                    self._slots.release()
                    slots -= 1
                    running.remove(ended)
                    self._finish(ended)
                    if ended.job.timed_out:
                        for job in ended.later:
                            job.give_up()
                    elif ended.later:
                        waiting.appendleft(ended.later)
        finally:  # after Ctrl-C
            for _ in range(slots):
                self._slots.release()

    def _start(self, lane: deque[Job]) -> _Running:
        job = lane.popleft()
        future = Future[Any]()
        loop = self._loop

        def work() -> None:
            _fill(future, job, loop)

        if job.worker is not None:
            job.worker.put(work)
        elif job.seconds == math.inf and not job.is_async:
            work()
            if future.done() and isinstance(error := future.exception(), KeyboardInterrupt):
                raise error
        else:
            try:
                threading.Thread(target=work, name="cotune-tool", daemon=True).start()
            except RuntimeError as error:  # calls that never return hold all threads
                future.set_exception(error)
        return _Running(job, lane, future, time.monotonic() + job.seconds)

    def _finish(self, ended: _Running) -> None:
        """Take what came of a job."""
        job = ended.job
        if not ended.future.cancel():
            job.error = ended.future.exception()
            job.value = None if job.error else ended.future.result()
            return
        job.give_up()
        # An async function that blocks its loop (with `time.sleep`) gets no others there.
        if job.is_async and not self._loop.answers(_PATIENCE):
            self._loop = BackgroundLoop()


def _wait_for_ends(running: Sequence[_Running]) -> list[_Running]:
    """Wait for the next job that ends or times out."""
    nearest = min(call.deadline for call in running)
    seconds = max(0.0, nearest - time.monotonic())
    futures = [call.future for call in running]
    wait(futures, min(seconds, threading.TIMEOUT_MAX), FIRST_COMPLETED)
    now = time.monotonic()
    return [call for call in running if call.future.done() or call.deadline <= now]


def _fill(future: "Future[Any]", job: Job, loop: BackgroundLoop) -> None:
    """Make a call in this thread, and put its result or exception into the future."""
    awaited: Future[Any] | None = None
    try:
        value = job.function(**job.kwargs)
        if inspect.isawaitable(value):
            awaited = loop.submit(_await(value))
            # Longer than the runner waits: this only stops the coroutine.
            value = awaited.result(min(job.seconds + _PATIENCE, threading.TIMEOUT_MAX))
    except BaseException as error:  # noqa: BLE001 - user code; SystemExit is an outcome as well
        if awaited is not None:
            awaited.cancel()
        # After a timeout nothing waits for the future.
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
    else:
        if future.set_running_or_notify_cancel():
            future.set_result(value)


async def _await(value: Awaitable[Any]) -> Any:
    return await value
