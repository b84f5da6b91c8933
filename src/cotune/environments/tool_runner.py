"""Run the user's functions: several at a time, each with a timeout, so that none can hang a run.

A function that takes too long continues in its thread, since Python cannot stop it, but nothing
waits for it. Its slot is freed immediately, and the thread does not keep the process from ending.
"""

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

_Work = Callable[[], None]
_PATIENCE = 1.0  # seconds in which an event loop that is not blocked answers


@dataclass(frozen=True)
class Job:
    """A call of a function, sync or async, with its timeout.

    Attributes:
        worker: the thread that makes the call; None for a new thread.
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

    def put(self, work: _Work) -> None:
        self._work.put(work)


class ToolRunner:
    """Run lanes of calls at the same time, and the calls of a lane one after the other.

    Calls run in threads, where async ones wait for one event loop in the background. A sync call without a
    timeout or a thread of its own runs in the caller's thread.

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
            for call in self._wait(running):
                running.remove(call)
                outcome = _outcome(call)
                outcomes[call.lane].append(outcome)
                left = len(lanes[call.lane]) - len(outcomes[call.lane])
                if outcome.timed_out:
                    outcomes[call.lane] += [outcome] * left
                elif left:
                    waiting.appendleft(call.lane)
        return outcomes

    def call(self, job: Job) -> Outcome:
        """Make one call."""
        return self.run([[job]])[0][0]

    def _start(self, lane: int, job: Job) -> _Running:
        future = Future[Any]()
        loop = self._loop

        def work() -> None:
            _fill(future, job, loop)

        if job.worker is not None:
            job.worker.put(work)
        elif job.seconds == math.inf and not is_async(job.function):
            work()
            if isinstance(error := future.exception(), KeyboardInterrupt):
                raise error
        else:
            try:
                threading.Thread(target=work, name="cotune-tool", daemon=True).start()
            except RuntimeError as error:  # calls that never return hold all threads
                future.set_exception(error)
        return _Running(lane, future, time.monotonic() + job.seconds, job)

    def _wait(self, running: Sequence[_Running]) -> list[_Running]:
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
            # An async function that blocks its loop (with `time.sleep`) gets no others there.
            late = call.future.cancel() and is_async(call.job.function)
            if late and not self._loop.answers(_PATIENCE):
                self._loop = BackgroundLoop()
        return ended


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function)


def _serve(queue: "SimpleQueue[_Work | None]") -> None:
    while (work := queue.get()) is not None:
        work()
        del work


def _fill(future: "Future[Any]", job: Job, loop: BackgroundLoop) -> None:
    """Make a call in this thread, and put its result or exception into the future."""
    waiting: Future[Any] | None = None
    try:
        value = job()
        if inspect.isawaitable(value):
            waiting = loop.submit(_await(value))
            # Longer than the runner waits: this only stops the coroutine.
            value = waiting.result(min(job.seconds + _PATIENCE, threading.TIMEOUT_MAX))
    except BaseException as error:  # noqa: BLE001 - user code; SystemExit is an outcome as well
        if waiting is not None:
            waiting.cancel()
        # After a timeout nothing waits for the future.
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
    else:
        if future.set_running_or_notify_cancel():
            future.set_result(value)


async def _await(value: Awaitable[Any]) -> Any:
    return await value


def _outcome(call: _Running) -> Outcome:
    if call.future.cancelled() or not call.future.done():
        late = TimeoutError(f"took longer than {call.job.seconds:g} s")
        return Outcome(error=late, timed_out=True)
    error = call.future.exception()
    return Outcome(error=error) if error is not None else Outcome(call.future.result())
