"""One event loop beside the program, for async functions that synchronous code calls."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """Runs coroutines on an event loop in its own thread, started when first needed.

    It is the same loop each time, as clients of async libraries require, and it works if a loop is
    already running, as in a notebook.
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

    def answers(self, seconds: float) -> bool:
        """Return whether the loop responds within some seconds, or is blocked."""
        answered = threading.Event()
        self._started().call_soon_threadsafe(answered.set)
        return answered.wait(seconds)

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
