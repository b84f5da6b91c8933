import asyncio
import functools
import gc
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from cotune.environments.tool_runner import Job, ToolRunner
from cotune.utils.background import Worker

LONG = 30.0  # never reached
SHORT = 0.02


@pytest.fixture
def hang() -> Iterator[Callable[[], None]]:
    """A function that does not come back before the test is over."""
    released = threading.Event()
    yield lambda: (released.wait(), None)[1]
    released.set()


def job(function: Callable[..., Any], *args: Any, seconds: float = LONG) -> Job:
    return Job(functools.partial(function, *args) if args else function, seconds)


def run(concurrency: int, *lanes: list[Job]) -> list[list[Job]]:
    ToolRunner(concurrency).run(lanes)
    return list(lanes)


def run_one(job: Job) -> Job:
    ToolRunner(1).run([[job]])
    return job


def test_as_many_calls_run_at_the_same_time_as_are_allowed() -> None:
    together = threading.Barrier(3)
    running, most, lock = 0, 0, threading.Lock()

    def count() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(LONG)
        with lock:
            running -= 1

    outcomes = run(3, *([job(count)] for _ in range(6)))

    assert all(lane[0].error is None for lane in outcomes)
    assert most == 3


def test_async_calls_wait_for_each_other_on_one_loop() -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    arrived: list[asyncio.Event] = []

    async def meet() -> None:
        loops.append(asyncio.get_running_loop())
        arrived.append(asyncio.Event())
        if len(arrived) == 2:
            arrived[0].set()
        else:
            await arrived[0].wait()

    ToolRunner(2).run([[job(meet)], [job(meet)]])

    assert len(loops) == 2
    assert loops[0] is loops[1]


def test_errors_are_outcomes() -> None:
    async def fails() -> None:
        raise KeyError("a")

    async def cancelled() -> None:
        task = asyncio.ensure_future(asyncio.sleep(LONG))
        task.cancel()
        await task

    lanes = [[job(lambda: 1 // 0), job(lambda: 2)], [job(fails)], [job(cancelled)]]
    (first, second), (third,), (fourth,) = run(2, *lanes)

    errors = [type(outcome.error).__name__ for outcome in (first, third, fourth)]
    assert errors == ["ZeroDivisionError", "KeyError", "CancelledError"]
    assert second.value == 2
    assert not any(outcome.timed_out for outcome in (first, third, fourth))


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt()])
def test_a_tool_cannot_end_the_process_or_the_event_loop(raised: BaseException) -> None:
    def leaves() -> None:
        raise raised

    async def leaves_async() -> None:
        raise raised

    async def works() -> str:
        return "works"

    outcomes = run(1, [job(leaves)], [job(leaves_async)], [job(works)])

    assert outcomes[0][0].error is raised
    assert outcomes[1][0].error is raised
    assert outcomes[2][0].value == "works"


def test_a_call_that_hangs_is_given_up_and_its_place_is_free(hang: Callable[[], None]) -> None:
    made: list[str] = []
    hangs = [job(hang, seconds=SHORT), job(made.append, "late")]
    late, then = run(1, hangs, [job(lambda: "next")])

    assert [outcome.timed_out for outcome in late] == [True, True]
    assert not made
    assert isinstance(late[0].error, TimeoutError)
    assert str(late[0].error) == "took longer than 0.02 s"
    assert then[0].value == "next"


def test_an_async_call_that_takes_too_long_is_cancelled() -> None:
    cancelled = threading.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    outcome = run_one(job(waits, seconds=SHORT))

    assert outcome.timed_out
    assert cancelled.wait(LONG)


def test_an_async_tool_that_blocks_its_loop_does_not_stop_the_others(
    hang: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotune.environments.tool_runner._PATIENCE", SHORT)

    async def blocks() -> None:
        hang()

    async def works() -> str:
        return "works"

    late, then = run(1, [job(blocks, seconds=SHORT)], [job(works)])

    assert late[0].timed_out
    assert then[0].value == "works"


def test_a_function_that_returns_a_coroutine_is_awaited() -> None:
    async def works(value: int) -> int:
        return value + 1

    def decorated(function: Callable[[int], Awaitable[int]]) -> Callable[[int], Awaitable[int]]:
        @functools.wraps(function)
        def call(value: int) -> Awaitable[int]:
            return function(value)

        return call

    assert run_one(job(decorated(works), 3)).value == 4


def test_a_call_that_hangs_does_not_keep_the_process_from_ending() -> None:
    script = (
        "import threading\n"
        "from cotune.environments.tool_runner import Job, ToolRunner\n"
        "from cotune.utils.background import Worker\n"
        "for worker in (None, Worker()):\n"
        "    job = Job(threading.Event().wait, 0.01, worker=worker)\n"
        "    ToolRunner(1).run([[job]])\n"
        "    print(job.timed_out)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.split() == ["True", "True"]


def test_a_worker_ends_when_nobody_has_it() -> None:
    worker = Worker()
    thread = run_one(Job(threading.current_thread, LONG, worker=worker)).value

    del worker
    gc.collect()
    thread.join(LONG)

    assert not thread.is_alive()
