"""Event loops and threads beside the program: async functions from synchronous code, and the other way round."""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
Work = Callable[[], None]


class Worker:
    """A thread for objects that must stay in one; it ends with the process, or when this is garbage-collected."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        # The thread holds only the queue: a reference to the worker would keep it alive.
        threading.Thread(target=_serve, args=(self._work,), name="cotune-tool", daemon=True).start()
        weakref.finalize(self, self._work.put, None)

    def put(self, work: Work) -> None:
        """Run `work`, which must not raise, after what was put before."""
        self._work.put(work)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return the function's result, or raise its exception. A call that is cancelled runs on unobserved."""
        outcome: Future[T] = Future()
        outcome.set_running_or_notify_cancel()

        def work() -> None:
            try:
                outcome.set_result(function(*arguments))
            except StopIteration as error:  # which no task can raise
                renamed = RuntimeError("raised StopIteration")
                outcome.set_exception(renamed.with_traceback(error.__traceback__))
            except BaseException as error:  # noqa: BLE001 - raised in the awaiting task
                outcome.set_exception(error)

        self.put(work)
        return await asyncio.wrap_future(outcome)


def _serve(queue: "SimpleQueue[Work | None]") -> None:
    while (work := queue.get()) is not None:
        work()
        del work


class BackgroundLoop:
    """Runs coroutines on one event loop in its own thread, started when first needed.

    Clients of async libraries require the same loop each time, and here another may be running, as in a notebook.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result, or raise its exception; Ctrl-C cancels it."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine and return its future; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._started())

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            # A forked process has the loop, but not its thread.
            if self._loop is None or self._process != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._process = os.getpid()
                threading.Thread(
                    target=_run_forever, args=(self._loop,), name="cotune-async", daemon=True
                ).start()
            return self._loop


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop, also after a coroutine that calls sys.exit: its future holds the exception."""
    while True:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            continue
        return


_notebook_loop = BackgroundLoop()


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return a coroutine's result, run in this thread; in another one if a loop runs here. Ctrl-C waits for its end."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # `asyncio.run` would take away the loop that `asyncio.get_event_loop` finds in this thread.
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(coroutine)
    task = _notebook_loop.submit(_begin(coroutine)).result()
    ended = _notebook_loop.submit(asyncio.wait([task]))
    try:
        ended.result()
    except BaseException:
        task.get_loop().call_soon_threadsafe(task.cancel)
        ended.result()
        raise
    return task.result()


async def _begin(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.create_task(coroutine)
