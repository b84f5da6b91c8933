"""Run the user's functions: several at a time, each with a timeout, so that none can hang a run.

A function that takes too long continues in its thread, since Python cannot stop it, but nothing
waits for it. Its slot is freed immediately, and the thread does not keep the process from ending.
"""

import asyncio
import inspect
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from cotune.errors import ConfigError
from cotune.utils.background import BackgroundLoop

_Work = tuple["Future[Any]", "Job", BackgroundLoop]
_PATIENCE = 1.0  # seconds in which an event loop that is not blocked answers


@dataclass(frozen=True)
class Job:
    """A call of a function, sync or async, with its timeout.

    Attributes:
        worker: the thread that makes a sync call; None for a new thread.
    """

    function: Callable[..., Any]
    seconds: float
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    worker: "Worker | None" = None

    def __call__(self) -> Any:
        return self.function(*self.args, **self.kwargs)


@dataclass(frozen=True)
class Outcome:
    """The value of a call, or its error; a TimeoutError if it took too long."""

    value: Any = None
    error: BaseException | None = None
    timed_out: bool = False


@dataclass
class _Running:
    lane: int
    future: "Future[Any]"
    deadline: float
    job: Job


class Worker:
    """A thread for objects that must stay in one; it ends when this is garbage-collected."""

    def __init__(self) -> None:
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        # The thread holds only the queue: a reference to the worker would keep it alive.
        threading.Thread(target=_serve, args=(self._work,), name="cotune-tool", daemon=True).start()
        weakref.finalize(self, self._work.put, None)

    def put(self, work: "_Work") -> None:
        self._work.put(work)


class ToolRunner:
    """Run lanes of calls at the same time, and the calls of a lane one after the other.

    Sync calls run in threads, async ones on one event loop in the background. A sync call without a timeout
    or a thread of its own runs in the caller's thread.

    Args:
        concurrency: calls that run at the same time.

    Raises:
        ConfigError: `concurrency` is below 1.
    """

    def __init__(self, concurrency: int) -> None:
        if concurrency < 1:
            raise ConfigError(f"concurrency is {concurrency}; expected 1 or more")
        self._concurrency = concurrency
        self._loop = BackgroundLoop()

    def run(self, lanes: Sequence[Sequence[Job]]) -> list[list[Outcome]]:
        """Make all calls and return their outcomes in the order of the calls.

        A lane ends with its first call that takes too long; the calls after it are not made and
        have the same outcome.
        """
        outcomes: list[list[Outcome]] = [[] for _ in lanes]
        waiting = deque(i for i, lane in enumerate(lanes) if lane)
        running: list[_Running] = []
        while waiting or running:
            while waiting and len(running) < self._concurrency:
                lane = waiting.popleft()
                running.append(self._start(lane, lanes[lane][len(outcomes[lane])]))
            for ended in self._ended(running):
                running.remove(ended)
                lane, done = lanes[ended.lane], outcomes[ended.lane]
                outcome = _outcome(ended)
                done.append(outcome)
                if outcome.timed_out:
                    done += [outcome] * (len(lane) - len(done))
                elif len(done) < len(lane):
                    waiting.appendleft(ended.lane)
        return outcomes

    def call(self, job: Job) -> Outcome:
        """Make one call."""
        return self.run([[job]])[0][0]

    def _start(self, lane: int, job: Job) -> _Running:
        if is_async(job.function):
            future = self._loop.submit(_awaited(job))
        else:
            future = Future[Any]()
            work = (future, job, self._loop)
            if job.worker is not None:
                job.worker.put(work)
            elif job.seconds == math.inf:
                _into(*work)
                if isinstance(error := future.exception(), KeyboardInterrupt):
                    raise error
            else:
                thread = threading.Thread(target=_into, args=work, name="cotune-tool", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # calls that never return hold all threads
                    future.set_exception(error)
        return _Running(lane, future, time.monotonic() + job.seconds, job)

    def _ended(self, running: Sequence[_Running]) -> list[_Running]:
        """Wait for the next call that ends or times out."""
        nearest = min(call.deadline for call in running)
        wait(
            [call.future for call in running],
            timeout=min(max(0.0, nearest - time.monotonic()), threading.TIMEOUT_MAX),
            return_when=FIRST_COMPLETED,
        )
        now = time.monotonic()
        ended = [call for call in running if call.future.done() or call.deadline <= now]
        for call in ended:
            # The coroutine of an async call is cancelled; the result of a sync call is ignored.
            if not call.future.done() and call.future.cancel() and is_async(call.job.function):
                self._leave_if_blocked()
        return ended

    def _leave_if_blocked(self) -> None:
        """Use a new loop for later async calls if one blocks this loop (with `time.sleep`)."""
        if not self._loop.answers(_PATIENCE):
            self._loop = BackgroundLoop()


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function)


async def _awaited(job: Job) -> Any:
    try:
        return await job()
    except (SystemExit, KeyboardInterrupt) as error:
        # These would stop the event loop.
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():  # it took too long
            raise
        raise RuntimeError("a task that it awaited was cancelled") from error


def _serve(queue: "SimpleQueue[_Work | None]") -> None:
    while (work := queue.get()) is not None:
        _into(*work)
        del work


def _into(future: "Future[Any]", job: Job, loop: BackgroundLoop) -> None:
    """Make a call in a thread, and put its result or exception into the future."""
    try:
        value = job()
        if inspect.isawaitable(value):  # a function that only returns a coroutine
            value = loop.run(_of(value))
    except BaseException as error:  # noqa: BLE001 - user code; SystemExit is an outcome as well
        _settle(future, error=error)
    else:
        _settle(future, value)


async def _of(value: Awaitable[Any]) -> Any:
    return await value


def _settle(future: "Future[Any]", value: Any = None, error: BaseException | None = None) -> None:
    if not future.set_running_or_notify_cancel():
        return  # it took too long; nothing waits for it
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def _outcome(call: _Running) -> Outcome:
    if call.future.cancelled() or not call.future.done():
        late = TimeoutError(f"took longer than {call.job.seconds:g} s")
        return Outcome(error=late, timed_out=True)
    error = call.future.exception()
    return Outcome(error=error) if error is not None else Outcome(call.future.result())
