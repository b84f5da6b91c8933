"""LLM calls that begin before their answers are due, in background threads.

The program takes each answer when it needs it, and waits if it has not arrived. So a run depends on the answers,
but not on when they arrive.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from cotune.protocols import LLM
from cotune.types import Completion, Metrics


class Bookings(Protocol):
    """The part of a ledger that records which rows were written for what."""

    def booking(self, step: int | None = None) -> AbstractContextManager[list[int]]:
        """Yield a list that gets the number of every row that this thread writes within the block.

        Args:
            step: the step that they are written under; None is the current step.
        """
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a call.

    Attributes:
        completion: the reply, or the exception that was raised.
        rows: numbers of the call's rows in the ledger.
        seconds: how long the LLM took.
    """

    completion: Completion | Exception
    rows: Sequence[int]
    seconds: float


class CallsAhead:
    """The calls of one LLM: begun ahead, or made when their answer is due.

    A call that has begun is completed even if its answer is never taken. No saved state holds answers: a
    run that is killed before it takes one asks again. Threads are daemons, so they never keep a finished
    program alive.

    Args:
        llm: asked ahead only if it has `at_once`, the number of calls it takes at a time; with 1
            each call waits for the one before.
        ledger: where the LLM records its calls.

    Attributes:
        step: the step whose evolution takes the answers of calls that begin now; they are recorded
            under it. None is the current step when a call is made.
    """

    def __init__(self, llm: LLM, ledger: Bookings) -> None:
        self._llm, self._ledger = llm, ledger
        self._at_once = int(getattr(llm, "at_once", 0))
        self._free = threading.Semaphore(max(1, self._at_once))
        self._begun: dict[str, Future[Answer]] = {}  # by prompt; answers not taken yet
        self._threads: list[threading.Thread] = []
        self._waited = self._hidden = 0.0
        self._taken = False
        self.step: int | None = None

    def begin(self, prompts: Sequence[str]) -> None:
        """Begin the calls of `prompts` that have not begun; only one if the LLM takes one at a time."""
        if not self._at_once:
            return
        for prompt in prompts:
            if prompt in self._begun:
                continue
            if self._begun and self._at_once == 1:
                return  # threads that wait for their turn have no order
            self._begun[prompt] = answer = Future[Answer]()
            thread = threading.Thread(
                target=self._answer,
                args=(answer, prompt, self.step),
                name="cotune-llm",
                daemon=True,
            )
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]
            thread.start()

    def take(self, prompt: str) -> Answer:
        """Return the answer to a prompt: of the call begun ahead, or of one that is made here."""
        begun, since = self._begun.pop(prompt, None), time.monotonic()
        answer = self._made(prompt, None) if begun is None else begun.result()
        waited = time.monotonic() - since
        self._taken = True
        self._waited += waited
        self._hidden += max(0.0, answer.seconds - waited)
        return answer

    def drop(self) -> None:
        """Forget the calls begun so far: their answers are no longer taken."""
        self._begun.clear()

    def finish(self) -> None:
        """Wait until all calls have ended, so that the ledger has what they cost."""
        self.drop()
        for thread in self._threads:
            thread.join()

    def metrics(self) -> Metrics:
        """Return how long answers were waited for since the last time, and how long they were not.

        Nothing if no answer was taken.
        """
        found = {"llm/waited_seconds": self._waited, "llm/hidden_seconds": self._hidden}
        taken, self._taken = self._taken, False
        self._waited = self._hidden = 0.0
        return found if taken else {}

    def _answer(self, answer: Future[Answer], prompt: str, step: int | None) -> None:
        try:
            answer.set_result(self._made(prompt, step))
        except BaseException as error:  # noqa: BLE001 - the waiting thread must get it
            answer.set_exception(error)

    def _made(self, prompt: str, step: int | None) -> Answer:
        with self._free, self._ledger.booking(step) as rows:
            began = time.monotonic()
            completion = _completion(self._llm, prompt)
            return Answer(completion, rows, time.monotonic() - began)


def _completion(llm: LLM, prompt: str) -> Completion | Exception:
    try:
        return llm.complete(prompt)
    except Exception as error:  # noqa: BLE001 - it is raised where the answer is due
        return error
