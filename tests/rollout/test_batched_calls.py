"""Calls of many episodes are made together, and one at a time."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from cotune.errors import ConfigError, EngineError
from cotune.rollout.batched_calls import Together
from cotune.utils.background import Worker


class Called:
    """Doubles numbers; notes each call, and whether one began while another ran."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.overlapped = False
        self.hold = threading.Event()
        self.hold.set()
        self.begun = threading.Event()
        self._one = threading.Lock()

    def __call__(self, items: Sequence[int]) -> list[int]:
        if not self._one.acquire(blocking=False):
            self.overlapped = True
            raise AssertionError("two calls at a time")
        try:
            self.calls.append(list(items))
            self.begun.set()
            assert self.hold.wait(10)
            return [2 * item for item in items]
        finally:
            self._one.release()


def within(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Fails where a waiter is never answered."""
    return asyncio.run(asyncio.wait_for(coroutine, 10))


async def gathered(together: Together, items: Sequence[int]) -> list[Any]:
    asked = [asyncio.create_task(together(item)) for item in items]
    return await asyncio.gather(*asked, return_exceptions=True)


def test_what_is_asked_at_once_is_one_call_in_order() -> None:
    called = Called()
    assert within(gathered(Together(called), range(5))) == [0, 2, 4, 6, 8]
    assert called.calls == [[0, 1, 2, 3, 4]]


def test_what_is_asked_during_a_call_waits_and_goes_together() -> None:
    called = Called()
    called.hold.clear()

    async def run() -> list[int]:
        together = Together(called)
        first = asyncio.create_task(together(1))
        await asyncio.to_thread(called.begun.wait, 10)
        later = [asyncio.create_task(together(n)) for n in (3, 2)]
        await asyncio.sleep(0)
        called.hold.set()
        return await asyncio.gather(first, *later)

    assert within(run()) == [2, 6, 4]
    assert called.calls == [[1], [3, 2]]
    assert not called.overlapped


def test_many_episodes_of_many_turns_never_call_twice_at_a_time() -> None:
    called = Called()

    async def run() -> list[list[int]]:
        together = Together(called)

        async def episode(number: int) -> list[int]:
            done = []
            for turn in range(1 + number % 4):
                done.append(await together(10 * number + turn))
                for _ in range(number % 3):
                    await asyncio.sleep(0)
            return done

        return await asyncio.gather(*(episode(n) for n in range(20)))

    expected = [[2 * (10 * n + turn) for turn in range(1 + n % 4)] for n in range(20)]
    assert within(run()) == expected
    assert not called.overlapped
    assert len(called.calls) < sum(map(len, expected))


def test_two_functions_of_one_thread_never_run_at_a_time() -> None:
    called = Called()

    async def run() -> list[Any]:
        worker = Worker()
        one, other = Together(called, worker=worker), Together(called, worker=worker)
        return [await asyncio.gather(one(n), other(n)) for n in range(20)]

    assert within(run()) == [[2 * n, 2 * n] for n in range(20)]
    assert not called.overlapped


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
