"""Calls of many episodes are made together, and one at a time."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from cotune.errors import ConfigError, EngineError
from cotune.rollout.drivers import Together
from cotune.utils.background import Worker


def within(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Fails where a waiter is never answered."""
    return asyncio.run(asyncio.wait_for(coroutine, 10))


async def gathered(together: Together, items: Sequence[int]) -> list[Any]:
    asked = [asyncio.create_task(together(item)) for item in items]
    return await asyncio.gather(*asked, return_exceptions=True)


def test_two_functions_of_one_thread_never_run_at_a_time() -> None:
    running = threading.Lock()

    def double(items: Sequence[int]) -> list[int]:
        assert running.acquire(blocking=False)
        try:
            return [2 * item for item in items]
        finally:
            running.release()

    async def run() -> list[Any]:
        worker = Worker()
        one, other = Together(double, worker=worker), Together(double, worker=worker)
        return [await asyncio.gather(one(n), other(n)) for n in range(20)]

    assert within(run()) == [[2 * n, 2 * n] for n in range(20)]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ConfigError("no key"), ConfigError),
        (KeyError("x"), KeyError),
        # These two a future does not take, or the event loop does not survive.
        (StopIteration("nothing left"), EngineError),
        (SystemExit(3), EngineError),
    ],
)
def test_an_error_reaches_every_waiter_and_the_next_call_is_made(
    raised: BaseException, expected: type[Exception]
) -> None:
    failing = True

    def function(items: Sequence[int]) -> Sequence[int]:
        if failing:
            raise raised
        return items

    async def run() -> tuple[list[Any], list[Any]]:
        nonlocal failing
        together = Together(function)
        first = await gathered(together, range(3))
        failing = False
        return first, await gathered(together, range(3))

    first, second = within(run())
    assert [type(error) for error in first] == [expected] * 3
    assert second == [0, 1, 2]


@pytest.mark.parametrize("answer", [lambda items: items[1:], lambda items: [*items, 9]])
def test_another_number_of_results_is_an_error(
    answer: Callable[[Sequence[int]], Sequence[int]],
) -> None:
    found = within(gathered(Together(answer), range(3)))
    assert [type(error) for error in found] == [EngineError] * 3
    assert "asked for 3 results" in str(found[0])
