"""Which functions can be tools."""

import asyncio
import functools
import gc
import json
import math
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cotune.environments.tool_calls import read_hermes
from cotune.environments.tools import (
    INITIAL_INSTRUCTION,
    OUT_OF_TURNS,
    Job,
    ToolEnvironment,
    ToolRunner,
    ToolsOptions,
    schema_of,
    tool_environment,
)
from cotune.errors import ConfigError
from cotune.types import Action, Response, Task, Turn
from cotune.utils.background import Worker
from tests.helpers import add, make_trajectory, raises_line, under

TASK = Task("q0", "What is 3 + 4?", ("7",))


async def divide(a: float, b: float) -> float:
    """Divides.

    Args:
        a: the dividend.
        b: the divisor.
    """
    return a / b


def environment(*tools: Any, **options: Any) -> ToolEnvironment:
    return ToolEnvironment(tools or (add, divide), {"train": [TASK]}, **options)


def action(*calls: tuple[str, dict[str, Any]], text: str = "", last: bool = False) -> Action:
    written = text + "".join(
        f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
        for name, arguments in calls
    )
    return Action(TASK, (), written, last, 0, read_hermes(written))


def respond(*calls: tuple[str, dict[str, Any]], **options: Any) -> Response:
    (response,) = environment().respond([action(*calls, **options)])
    return response


def contents(response: Response) -> list[str]:
    return [message["content"] for message in response.messages]


def test_parallel_calls_of_a_turn_are_answered_in_order_and_async_ones_last() -> None:
    response = respond(
        ("divide", {"a": 1, "b": 4}), ("add", {"a": 3, "b": 4}), ("add", {"a": 1, "b": 1})
    )
    assert contents(response) == ["7", "2", "0.25"]
    assert [m["name"] for m in response.messages] == ["add", "add", "divide"]
    assert (response.action, response.error) == ("3 calls", "")
    assert [tool["function"]["name"] for tool in environment().tools] == ["add", "divide"]
    assert respond(("add", {"a": 3, "b": 4})) == Response(
        action="add", messages=({"role": "tool", "name": "add", "content": "7"},)
    )
    # Good calls of a turn are made beside bad ones.
    response = respond(("add", {}), ("add", {"a": 1, "b": 1}), ("nothing", {}), ("nothing", {}))
    assert contents(response)[1] == "2"
    assert response.error == "add: TypeError; no such tool"
    assert response.action == "4 calls"


@pytest.mark.parametrize(
    ("call", "shown", "error", "taken_for"),
    [
        (("subtract", {"a": 1}), "Tool subtract not found.", "no such tool", "call"),
        (("add", {"a": 1}), "add() missing 1 required positional argument: 'b'", "add: TypeError", "add"),
        (("add", {"a": 1, "b": 2, "c": 3}), "add() got an unexpected keyword argument 'c'", "add: TypeError", "add"),
        (("divide", {"a": 1}), "divide() missing 1 required positional argument: 'b'", "divide: TypeError", "divide"),
        (("divide", {"a": 1, "b": 0}), "division by zero", "divide: ZeroDivisionError", "divide"),
    ],
)  # fmt: skip
def test_a_call_that_fails_is_an_observation(
    call: tuple[str, dict[str, Any]], shown: str, error: str, taken_for: str
) -> None:
    response = respond(call)

    assert contents(response) == [str({"error": shown})]
    assert (response.error, response.action) == (error, taken_for)
    assert not response.done
    assert not response.failed


def test_calls_of_the_last_turn_are_not_made() -> None:
    made: list[int] = []

    def note(number: int) -> str:
        """Notes.

        Args:
            number: what.
        """
        made.append(number)
        return "noted"

    (response,) = environment(note).respond([action(("note", {"number": 1}), last=True)])

    assert response == Response(done=True, action="call", error=OUT_OF_TURNS)
    assert not made
    assert respond(text="<tool_call>", last=True).done
    assert respond(text="7", last=True) == Response(done=True, action="answer")


def test_a_call_that_takes_too_long_is_an_observation_by_its_own_time_out() -> None:
    released = threading.Event()

    def hang() -> None:
        """Hangs."""
        released.wait()

    try:
        own = ToolEnvironment([hang, add], {"train": [TASK]}, seconds=0.2)
        (response,) = own.respond([action(("hang", {}), ("add", {"a": 1, "b": 1}))])
    finally:
        released.set()

    assert contents(response) == ["{'error': 'took longer than 0.2 s'}", "2"]
    assert response.error == "hang: took too long"
    assert not response.failed


@pytest.mark.parametrize(
    ("turns", "answer"),
    [
        ([Turn("<think>3+4</think>\n\n7", action="answer")], "7"),
        ([Turn("…", "\n7\n", "add"), Turn(" It is 7. ", action="answer")], "It is 7."),
        ([Turn("", action="answer")], None),
        ([Turn("<think>cut off", action="answer")], None),
        ([Turn("<tool_call>…</tool_call>", action="add", error=OUT_OF_TURNS)], None),
        ([], None),
    ],
)
def test_the_answer_is_what_the_last_turn_says(turns: list[Turn], answer: str | None) -> None:
    trajectory = make_trajectory(under(TASK), 0.0, turns=tuple(turns))
    assert environment().score(trajectory) == (0.0, answer)


def test_a_run_file_names_functions_with_time_outs(tmp_path: Path) -> None:
    file = tmp_path / "my_tools.py"
    file.write_text(
        'def double(a: int) -> int:\n    """Doubles.\n\n    Args:\n        a: what.\n    """\n'
        "    return 2 * a\n\nnumber = 3\n"
    )
    options = ToolsOptions(tools=(f"{file}:double",), seconds=2.5)

    made = tool_environment(options, {"train": [TASK]})
    (response,) = made.respond([action(("double", {"a": 4}))])

    assert contents(response) == ["8"]
    assert made.initial_instruction == INITIAL_INSTRUCTION
    with pytest.raises(ConfigError, match=r"my_tools\.py has no duble .did you mean double"):
        tool_environment(ToolsOptions(tools=(f"{file}:duble",)), {"train": [TASK]})
    with pytest.raises(ConfigError, match="tools: 3 cannot be a tool"):
        tool_environment(ToolsOptions(tools=(f"{file}:number",)), {"train": [TASK]})


def test_a_function_without_a_timeout_is_called_in_the_callers_thread_in_order() -> None:
    threads: list[int] = []
    order: list[int] = []

    def note(number: int) -> str:
        """Notes.

        Args:
            number: which.
        """
        threads.append(threading.get_ident())
        order.append(number)
        if number == 3:
            raise KeyboardInterrupt
        return "noted"

    plain = ToolEnvironment([note], {"train": [TASK]}, seconds=math.inf)
    plain.respond([action(("note", {"number": n}), ("note", {"number": n + 1})) for n in (0, 5)])
    assert order == [0, 1, 5, 6]
    assert set(threads) == {threading.get_ident()}
    with pytest.raises(KeyboardInterrupt):
        plain.respond([action(("note", {"number": 3}))])


def untyped(a, b: int):  # type: ignore[no-untyped-def]
    """Adds.

    Args:
        a: one.
        b: two.
    """


def undocumented(a: int) -> int:
    return a


def typed_twice(a: int) -> int:
    """Adds.

    Args:
        a (int): one.
    """
    return a


def unresolved(a: "Nowhere") -> int:  # type: ignore[name-defined]  # noqa: F821
    """Weighs.

    Args:
        a: what.
    """
    return 1


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (untyped, "untyped cannot be a tool .*Argument a is missing a type hint.*expected a function with"),
        (undocumented, "undocumented cannot be a tool .*no docstring"),
        (typed_twice, 'a line "name: what it is" under "Args:", without its type'),
        (unresolved, "unresolved cannot be a tool .*Nowhere"),
        ("weigh", "cannot be a tool"),
    ],
)  # fmt: skip
def test_functions_that_are_no_tools_are_refused_in_a_line(function: Any, said: str) -> None:
    with raises_line(match=said):
        schema_of(function)
    with pytest.raises(ConfigError, match="two are called add"):
        environment(add, add)


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
    # Async calls wait for each other on one loop.
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


def test_errors_are_outcomes_and_coroutines_are_awaited() -> None:
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

    # A function that returns a coroutine is awaited.
    async def works(value: int) -> int:
        return value + 1

    def decorated(function: Callable[[int], Awaitable[int]]) -> Callable[[int], Awaitable[int]]:
        @functools.wraps(function)
        def call(value: int) -> Awaitable[int]:
            return function(value)

        return call

    assert run_one(job(decorated(works), 3)).value == 4


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


def test_a_call_that_takes_too_long_is_given_up(hang: Callable[[], None]) -> None:
    # Its place is free.
    made: list[str] = []
    hangs = [job(hang, seconds=SHORT), job(made.append, "late")]
    late, then = run(1, hangs, [job(lambda: "next")])
    assert [outcome.timed_out for outcome in late] == [True, True]
    assert not made
    assert isinstance(late[0].error, TimeoutError)
    assert str(late[0].error) == "took longer than 0.02 s"
    assert then[0].value == "next"
    # An async call is cancelled.
    cancelled = threading.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    outcome = run_one(job(waits, seconds=10 * SHORT))  # it begins first, on a busy machine too
    assert outcome.timed_out
    assert cancelled.wait(LONG)


def test_a_call_that_hangs_does_not_keep_the_process_from_ending() -> None:
    script = (
        "import threading\n"
        "from cotune.environments.tools import Job, ToolRunner\n"
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
