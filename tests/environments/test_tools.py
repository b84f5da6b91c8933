"""Which functions can be tools."""

import asyncio
import functools
import gc
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
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
    call_tools,
    schema_of,
    tool_environment,
)
from cotune.errors import ConfigError
from cotune.types import Action, Response, Task, Turn
from cotune.utils.background import Worker
from tests.helpers import add, make_trajectory, raises_line, tool_call, under

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
    turn = text + "".join(tool_call(name, **arguments) for name, arguments in calls)
    return Action(TASK, (), turn, last, 0, read_hermes(turn))


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
    ("call", "message", "error", "action_name"),
    [
        (("subtract", {"a": 1}), "Tool subtract not found.", "no such tool", "call"),
        (("add", {"a": 1}), "add() missing 1 required positional argument: 'b'", "add: TypeError", "add"),
        (("add", {"a": 1, "b": 2, "c": 3}), "add() got an unexpected keyword argument 'c'", "add: TypeError", "add"),
        (("divide", {"a": 1, "b": 0}), "division by zero", "divide: ZeroDivisionError", "divide"),
    ],
)  # fmt: skip
def test_a_call_that_fails_is_an_observation(
    call: tuple[str, dict[str, Any]], message: str, error: str, action_name: str
) -> None:
    response = respond(call)

    assert contents(response) == [str({"error": message})]
    assert response == Response(action=action_name, error=error, messages=response.messages)
    mute = type("Mute", (Exception,), {"__str__": None})  # its text cannot be read
    jobs = iter((job(mute), job((_ for _ in ()).throw, mute())))
    (response,) = call_tools([action(call, call)], lambda *_: next(jobs), ToolRunner(1))
    assert response.error == f"{call[0]}: TypeError; {call[0]}: Mute"


def test_calls_of_the_last_turn_are_not_made() -> None:
    notes: list[int] = []

    def note() -> str:
        """Notes."""
        notes.append(1)
        return "noted"

    calls = [action(*[("note", {})] * count, last=True) for count in (1, 2)]
    expected = Response(done=True, action="call", error=OUT_OF_TURNS)
    assert environment(note).respond(calls) == [expected, expected]
    assert not notes
    assert respond(text="<tool_call>", last=True).done
    assert respond(text="7", last=True) == Response(done=True, action="answer")


def test_a_call_that_takes_too_long_is_an_observation_by_its_own_time_out() -> None:
    released = threading.Event()

    def hang() -> None:
        """Hangs."""
        released.wait()

    try:
        env = ToolEnvironment([hang, add], {"train": [TASK]}, seconds=0.2)
        (response,) = env.respond([action(("hang", {}), ("add", {"a": 1, "b": 1}))])
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

    env = tool_environment(options, {"train": [TASK]})
    (response,) = env.respond([action(("double", {"a": 4}))])

    assert contents(response) == ["8"]
    assert env.initial_instruction == INITIAL_INSTRUCTION
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

    env = ToolEnvironment([note], {"train": [TASK]}, seconds=math.inf)
    env.respond([action(("note", {"number": n}), ("note", {"number": n + 1})) for n in (0, 5)])
    assert order == [0, 1, 5, 6]
    assert set(threads) == {threading.get_ident()}
    with pytest.raises(KeyboardInterrupt):
        env.respond([action(("note", {"number": 3}))])


def undocumented(a: int) -> int:
    return a


def unresolved(a: "Nowhere") -> int:  # type: ignore[name-defined]  # noqa: F821
    """Weighs.

    Args:
        a: what.
    """
    return 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (undocumented, "undocumented cannot be a tool .*no docstring.*expected a function with"),
        (unresolved, "unresolved cannot be a tool .*Nowhere"),
        ("weigh", "cannot be a tool"),
    ],
)  # fmt: skip
def test_functions_that_are_no_tools_are_refused_in_a_line(function: Any, message: str) -> None:
    with raises_line(match=message):
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


def run(concurrency: int, *lanes: list[Job]) -> None:
    ToolRunner(concurrency).run(lanes)


def test_as_many_calls_run_at_the_same_time_as_are_allowed() -> None:
    barrier = threading.Barrier(3)
    running, peak, lock = 0, 0, threading.Lock()

    def count() -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        barrier.wait(LONG)
        with lock:
            running -= 1

    jobs = [job(count) for _ in range(6)]
    run(3, *([job] for job in jobs))
    assert all(job.error is None for job in jobs)
    assert peak == 3

    # Async calls share one loop.
    async def find_loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    first, second = job(find_loop), job(find_loop)
    run(2, [first], [second])
    assert first.value is second.value is not None


ERRORS = [
    KeyError("a"), StopIteration(), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS)
def test_a_tool_cannot_end_the_process_or_the_event_loop(error: BaseException) -> None:
    def leaves() -> None:
        raise error

    async def leaves_async() -> None:
        raise error

    async def works() -> str:
        return "works"

    # A function that returns a coroutine is awaited.
    jobs = [job(leaves), job(leaves_async), job(lambda: works())]
    run(1, *([job] for job in jobs))
    expected = [repr(error)] * 2
    if isinstance(error, StopIteration):  # which no task can raise
        expected = [f"RuntimeError('{start}raised StopIteration')" for start in ("", "coroutine ")]
    assert [repr(job.error) for job in jobs[:2]] == expected
    assert jobs[2].value == "works"


def test_a_call_that_takes_too_long_is_given_up(hang: Callable[[], None]) -> None:
    # Its place is free.
    calls: list[str] = []
    late, later = job(hang, seconds=SHORT), job(calls.append, "late")
    following = job(lambda: "next")
    run(1, [late, later], [following])
    assert late.timed_out
    assert later.timed_out
    assert not calls
    assert isinstance(late.error, TimeoutError)
    assert str(late.error) == "took longer than 0.02 s"
    assert following.value == "next"
    # An async call is cancelled.
    cancelled = threading.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    waiting = job(waits, seconds=10 * SHORT)  # it begins first, on a busy machine too
    run(1, [waiting])
    assert waiting.timed_out
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

    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )

    assert result.stdout.split() == ["True", "True"]


def test_a_worker_ends_when_nobody_has_it() -> None:
    worker = Worker()
    call = Job(threading.current_thread, LONG, worker=worker)
    run(1, [call])
    thread = call.value
    del worker, call
    gc.collect()
    thread.join(LONG)

    assert not thread.is_alive()
