"""Calls that begin before their answers are due. Events and barriers decide how long a call takes."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection

import pytest

from cotune.errors import BudgetError, LLMError
from cotune.run.calls_ahead import CallsAhead
from cotune.run.ledger import Ledger
from cotune.types import Completion

SECONDS = 30  # until a test that hangs fails


class Endpoint:
    """Answers a prompt by repeating it, after `before` let it."""

    def __init__(self, at_once: int, before: Callable[[str], object] = lambda prompt: None) -> None:
        self.at_once, self._before = at_once, before
        self.asked: list[str] = []

    def complete(self, prompt: str) -> Completion:
        self.asked.append(prompt)
        self._before(prompt)
        return Completion(prompt.upper())


def ledger() -> Ledger:
    made = Ledger(":memory:")
    made.begin_attempt(None)
    return made


def alive(others: Collection[threading.Thread] = ()) -> list[threading.Thread]:
    """The threads of calls, except others, which an earlier test may have left."""
    return [one for one in threading.enumerate() if one.name == "cotune-llm" and one not in others]


def test_calls_are_made_at_the_same_time_and_each_answer_goes_to_its_prompt() -> None:
    together = threading.Barrier(3)
    llm = Endpoint(4, lambda prompt: together.wait(SECONDS))
    calls = CallsAhead(llm, ledger())
    calls.begin(["a", "b", "c"])
    calls.begin(["c", "a"])  # have begun
    assert [calls.take(prompt).completion for prompt in "cab"] == [*map(Completion, "CAB")]
    assert sorted(llm.asked) == ["a", "b", "c"]


def test_an_llm_that_does_not_say_so_is_asked_when_the_answer_is_due_in_the_programs_thread() -> (
    None
):
    here: list[bool] = []
    main = threading.current_thread()
    llm = Endpoint(0, lambda prompt: here.append(threading.current_thread() is main))
    calls = CallsAhead(llm, ledger())
    calls.begin(["a", "b"])
    assert llm.asked == []
    assert calls.take("b").completion == Completion("B")
    assert (llm.asked, here) == (["b"], [True])


def test_with_one_call_at_a_time_each_waits_for_the_one_before() -> None:
    over, entered = threading.Event(), threading.Event()

    def before(prompt: str) -> None:
        entered.set()
        assert prompt == "b" or over.wait(SECONDS)

    llm = Endpoint(1, before)
    calls = CallsAhead(llm, ledger())
    calls.begin(["a", "b"])  # only the first begins
    calls.drop()
    calls.begin(["b"])
    assert entered.wait(SECONDS)
    assert llm.asked == ["a"]
    over.set()
    assert calls.take("b").completion == Completion("B")
    assert llm.asked == ["a", "b"]


@pytest.mark.parametrize("error", [LLMError("503"), BudgetError("spent"), ValueError("own code")])
def test_an_error_is_the_answer_where_it_is_due(error: Exception) -> None:
    def fail(prompt: str) -> None:
        raise error

    calls = CallsAhead(Endpoint(2, fail), ledger())
    calls.begin(["a"])
    assert calls.take("a").completion is error
    assert calls.take("b").completion is error  # made here


def test_what_ends_a_thread_is_raised_where_its_answer_is_due() -> None:
    def leave(prompt: str) -> None:
        raise SystemExit(3)

    calls = CallsAhead(Endpoint(2, leave), ledger())
    calls.begin(["a"])
    with pytest.raises(SystemExit):
        calls.take("a")


def test_metrics_tell_what_was_waited_for_and_what_was_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("cotune.run.calls_ahead.time.monotonic", lambda: now)

    def takes_eight(prompt: str) -> None:
        nonlocal now
        now += 8.0

    calls = CallsAhead(Endpoint(2, takes_eight), ledger())
    calls.begin(["a"])
    calls.finish()  # it is over, and nobody needed it
    assert calls.metrics() == {}
    calls.begin(["b"])
    for thread in calls._threads:  # pyright: ignore[reportPrivateUsage]
        thread.join()
    calls.take("b")  # was there
    assert calls.metrics() == {"llm/waited_seconds": 0.0, "llm/hidden_seconds": 8.0}
    calls.take("c")  # made here
    assert calls.metrics() == {"llm/waited_seconds": 8.0, "llm/hidden_seconds": 0.0}
    assert calls.metrics() == {}


def test_no_thread_is_left_after_the_last_call_has_ended() -> None:
    over, before = threading.Event(), alive()
    calls = CallsAhead(Endpoint(2, lambda prompt: over.wait(SECONDS)), ledger())
    calls.begin(["a", "b"])
    calls.drop()
    assert len(alive(before)) == 2
    over.set()
    calls.finish()
    assert alive(before) == []


def test_ctrl_c_ends_the_wait_for_an_answer() -> None:
    over, main = threading.Event(), threading.main_thread()

    def interrupt(prompt: str) -> None:
        assert main.ident is not None
        signal.pthread_kill(main.ident, signal.SIGINT)
        over.wait(SECONDS)

    calls = CallsAhead(Endpoint(2, interrupt), ledger())

    def ask() -> None:
        calls.begin(["a"])
        calls.take("a")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            ask()
    finally:
        signal.signal(signal.SIGINT, before)
        over.set()
    calls.finish()


ENDS = """
import threading
from cotune.run.calls_ahead import CallsAhead
from cotune.run.ledger import Ledger

class Never:
    at_once = 1
    def complete(self, prompt):
        asked.set()
        threading.Event().wait()

asked = threading.Event()
ledger = Ledger(":memory:")
CallsAhead(Never(), ledger).begin(["a"])
assert asked.wait(30)
"""


def test_a_program_ends_although_a_call_is_under_way() -> None:
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", ENDS], env={**os.environ, "PYTHONPATH": path}, timeout=60
    )
    assert done.returncode == 0
